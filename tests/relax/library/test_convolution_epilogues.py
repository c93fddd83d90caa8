# SPDX-License-Identifier: Apache-2.0
"""Stitch ops that become epilogues of our convolutions: which ones, kernels launched, and numbers in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from cuda_emulator import Options, run_cuda, run_lowered
from cuda_emulator.lowering import lower
from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.once import once
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.choices import change_choices
from tests.graph.helpers import build
from tvm_stitch import StitchConfig, explain
from tvm_stitch.compute.cuda import convolution_plan
from tvm_stitch.compute.cuda.convolution_plan import Tile
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
RNG = np.random.default_rng()
TOLERANCE = {"float32": (2e-5, 1e-4), "float16": (4e-3, 4e-3)}
CHANNELS = 64
BY_GRID = StitchConfig(clusters=False)
"""Divided sums are added up behind a barrier of the grid."""


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def constant(*shape: int) -> Any:
    return relax.const(draw(*shape))


def convolved(x: Any) -> Any:
    """Build a convolution whose sums are not divided: each is of few products."""
    return R.nn.conv2d(x, constant(CHANNELS, CHANNELS, 1, 1))


def launched(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[str]:
    passes = once(pipeline(TARGET))
    run = run_cuda(mod, inputs, target=TARGET, relax_pipeline=passes, tir_pipeline=LOWERING).check()
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []
    assert len(run.launches) == count_kernels(mod, TARGET, passes).total
    return [launch.name for launch in run.launches]


def bias(emit: Any, y: Any, _x: Any) -> Any:
    return emit(R.add(y, constant(1, CHANNELS, 1, 1)))


def hard_swish(emit: Any, y: Any, _x: Any) -> Any:
    gate = emit(R.clip(emit(R.add(y, R.const(3.0))), 0, 6))
    return emit(R.multiply(emit(R.multiply(y, gate)), R.const(1 / 6)))


def gated_residual(emit: Any, y: Any, x: Any) -> Any:
    gated = emit(R.multiply(y, constant(3, CHANNELS, 1, 1)))
    return emit(R.nn.silu(emit(R.add(gated, x))))


def two_results(emit: Any, y: Any, _x: Any) -> list[Any]:
    y = emit(R.add(y, constant(1, CHANNELS, 1, 1)))
    return [y, emit(R.nn.leakyrelu(y, 0.1))]


def narrowed(emit: Any, y: Any, _x: Any) -> Any:
    return emit(R.astype(emit(R.tanh(y)), "float16"))


@pytest.mark.parametrize("extents", [(6, 6), (7, 5)], ids=str)
@pytest.mark.parametrize("behind", [bias, hard_swish, two_results, narrowed, gated_residual])
def test_one_kernel_with_a_convolution(behind: Callable[..., Any], extents: tuple[int, int]) -> None:
    """Positions of an image are a multiple of a vector, and others. Tiles are not filled."""

    def body(emit: Any, x: Any) -> Any:
        return behind(emit, emit(convolved(x)), x)

    mod = build(body, ((3, CHANNELS, *extents), "float32"))
    (name,) = launched(mod, [draw(3, CHANNELS, *extents)])
    assert name.startswith("convolution_")


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_and_more_channels_than_a_tile(groups: int) -> None:
    def body(emit: Any, x: Any, residual: Any) -> Any:
        y = emit(R.nn.conv2d(x, constant(132, 64 // groups, 1, 1), groups=groups))
        return emit(R.nn.relu(emit(R.add(emit(R.add(y, constant(1, 132, 1, 1))), residual))))

    mod = build(body, ((1, 64, 8, 16), "float32"), ((1, 132, 8, 16), "float32"))
    (name,) = launched(mod, [draw(1, 64, 8, 16), draw(1, 132, 8, 16)])
    assert name.startswith("convolution_")


@pytest.mark.parametrize(
    ("channels", "name", "tolerance"),
    [(32, "convolution_relu_kernel", 1e-4), (512, "convolution_added_up_relu_kernel", 2e-4)],
    ids=["whole sums", "divided sums"],
)
def test_one_spatial_axis(channels: int, name: str, tolerance: float) -> None:
    weight, x = draw(64, channels, 1), draw(2, channels, 43)
    mod = build(
        lambda emit, x: emit(R.nn.relu(emit(R.nn.conv1d(x, relax.const(weight))))), (x.shape, "float32")
    )
    run = run_cuda(mod, [x], target=TARGET, relax_pipeline=pipeline(TARGET), tir_pipeline=LOWERING).check()
    assert [launch.name for launch in run.launches] == [name]
    wanted = np.maximum(np.einsum("fc,ncx->nfx", weight[..., 0].astype("float64"), x), 0)
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=tolerance)


def test_of_two_convolutions_the_last_one_adds() -> None:
    def body(emit: Any, x: Any) -> Any:
        first, second = emit(convolved(x)), emit(convolved(x))
        return emit(R.nn.relu(emit(R.add(second, first))))

    names = launched(build(body, ((2, CHANNELS, 6, 6), "float32")), [draw(2, CHANNELS, 6, 6)])
    assert len(names) == 2 and sum("relu" in name for name in names) == 1


def read_twice(emit: Any, x: Any) -> Any:
    y = emit(convolved(x))
    return [emit(R.nn.relu(y)), emit(R.matmul(y, constant(6, 3)))]


def a_result(emit: Any, x: Any) -> Any:
    y = emit(convolved(x))
    return [emit(R.nn.relu(y)), y]


def reduced(emit: Any, x: Any) -> Any:
    return emit(R.mean(emit(R.nn.relu(emit(convolved(x)))), axis=[2, 3]))


def transposed(emit: Any, x: Any) -> Any:
    return emit(R.permute_dims(emit(R.nn.relu(emit(convolved(x)))), [0, 2, 3, 1]))


@pytest.mark.parametrize("body", [read_twice, a_result, reduced, transposed])
def test_others_stay_stitched(body: Callable[..., Any]) -> None:
    names = launched(build(body, ((2, CHANNELS, 6, 6), "float32")), [draw(2, CHANNELS, 6, 6)])
    assert "convolution_kernel" in names and any(name.startswith("stitch_") for name in names), names


def divided(x: Any, padding: int = 1) -> Any:
    """Build a convolution whose sums are divided: it has few results."""
    return R.nn.conv2d(x, constant(CHANNELS, CHANNELS, 3, 3), padding=padding)


def alone(_emit: Any, y: Any, _x: Any) -> Any:
    return y


@pytest.mark.parametrize("extents", [(6, 6), (7, 5)], ids=str)
@pytest.mark.parametrize("behind", [alone, bias, hard_swish, two_results, narrowed, gated_residual])
def test_divided_sums_are_added_up_by_their_own_kernel(
    behind: Callable[..., Any], extents: tuple[int, int]
) -> None:
    def body(emit: Any, x: Any) -> Any:
        return behind(emit, emit(divided(x)), x)

    mod = build(body, ((3, CHANNELS, *extents), "float32"))
    inputs = [draw(3, CHANNELS, *extents)]
    (name,) = launched(mod, inputs)
    assert name.startswith("convolution_added_up")
    assert more_than_stock(mod, TARGET, pipeline(TARGET)) == ""
    run = run_cuda(
        mod, inputs, target=TARGET, relax_pipeline=pipeline(TARGET, BY_GRID), tir_pipeline=LOWERING
    ).check()
    assert [launch.cooperative for launch in run.launches] == [True]
    assert mismatches(list(run.outputs), evaluate(mod, inputs), TOLERANCE) == []


@pytest.mark.parametrize("splits", [9, 16, 17, 18])
def test_every_split_is_added_once(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many as are loaded together, and others. None of them is empty."""
    change_choices(monkeypatch, convolution_splits=(splits,))
    weight = constant(CHANNELS, 128 * splits, 1, 1)
    shape = (1, 128 * splits, 6, 6)
    (name,) = launched(
        build(lambda emit, x: emit(R.nn.conv2d(x, weight)), (shape, "float32")), [draw(*shape)]
    )
    assert name.startswith("convolution")


@pytest.mark.parametrize("splits", [2, 3, 5])
@pytest.mark.parametrize(
    ("channels", "extents"), [(97, (7, 9)), (64, (7, 9)), (64, (8, 9))], ids=["odd", "odd places", "even"]
)
def test_a_thread_adds_up_several_vectors(
    channels: int, extents: tuple[int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one element or of four, whose places are of one channel or of several."""
    change_choices(monkeypatch, convolution_splits=(splits,))
    monkeypatch.setattr(convolution_plan, "TILES", (Tile(64, 64, 2),))
    change_choices(monkeypatch, convolution_fewest_rounds=1)

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, constant(channels, CHANNELS, 3, 3), padding=1))
        y = emit(R.multiply(y, constant(1, channels, 1, extents[1])))
        return emit(R.add(y, constant(3, channels, *extents)))

    mod, x = build(body, ((3, CHANNELS, *extents), "float32")), draw(3, CHANNELS, *extents)
    run = run_cuda(
        mod, [x], target=TARGET, relax_pipeline=pipeline(TARGET, BY_GRID), tir_pipeline=LOWERING
    ).check()
    (launch,) = run.launches
    assert launch.cooperative
    assert mismatches(list(run.outputs), evaluate(mod, [x]), TOLERANCE) == []


@pytest.mark.parametrize("splits", [2, 3, 4, 8])
@pytest.mark.parametrize("extents", [(6, 6), (7, 5)], ids=str)
@pytest.mark.parametrize("behind", [alone, hard_swish, two_results, gated_residual])
def test_few_splits_are_blocks_of_a_cluster(
    behind: Callable[..., Any], extents: tuple[int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They add up each other's tiles in their order, as behind a barrier of the grid: bits are the same."""
    change_choices(monkeypatch, convolution_splits=(splits,))
    change_choices(monkeypatch, convolution_fewest_rounds=1)

    def body(emit: Any, x: Any) -> Any:
        return behind(emit, emit(divided(x)), x)

    mod, x = build(body, ((3, CHANNELS, *extents), "float32")), draw(3, CHANNELS, *extents)
    found = []
    for config in (StitchConfig(), StitchConfig(clusters=False)):
        run = run_cuda(
            mod, [x], target=TARGET, relax_pipeline=pipeline(TARGET, config), tir_pipeline=LOWERING
        ).check()
        (launch,) = run.launches
        assert launch.name.startswith("convolution_added_up")
        assert launch.cluster == ((splits if config.clusters else 1), 1, 1)
        assert launch.cooperative != config.clusters
        found.append(run.outputs)
    assert mismatches(list(found[0]), evaluate(mod, [x]), TOLERANCE) == []
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_clusters_have_multiprocessors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 of eight blocks would share some on an H100, and take nearly twice the time."""
    change_choices(monkeypatch, convolution_splits=(8,))
    monkeypatch.setattr(convolution_plan, "TILES", (Tile(64, 64, 2),))
    mod = build(
        lambda emit, x: emit(R.nn.relu(emit(R.nn.conv2d(x, constant(256, 256, 3, 3), padding=1)))),
        ((1, 256, 14, 14), "float32"),
    )
    made = pipeline(TARGET)(mod)
    (func,) = (func for gvar, func in made.functions_items() if gvar.name_hint.startswith("convolution_add"))
    assert "clusterCtaIdx.x" not in str(func)


def test_a_cluster_needs_no_grid_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, convolution_splits=(4,))
    mod = build(lambda emit, x: emit(R.nn.relu(emit(divided(x)))), ((1, CHANNELS, 9, 9), "float32"))
    counted = count_kernels(mod, TARGET, pipeline(TARGET, StitchConfig(grid_barriers=False)))
    assert counted.names == ("convolution_added_up_relu_kernel",)


@pytest.mark.parametrize("groups", [1, 2])
def test_tiles_of_a_cluster(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles of channels and of places, the last ones not full."""
    change_choices(monkeypatch, convolution_splits=(4,))

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, constant(192, 128 // groups, 3, 3), padding=1, groups=groups))
        return emit(R.nn.relu(emit(R.add(y, constant(1, 192, 1, 1)))))

    (name,) = launched(build(body, ((2, 128, 8, 9), "float32")), [draw(2, 128, 8, 9)])
    assert name.startswith("convolution_added_up")


def test_divided_sums_of_groups() -> None:
    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, constant(128, 64, 3, 3), groups=2))
        return emit(R.nn.relu(emit(R.add(y, constant(1, 128, 1, 1)))))

    (name,) = launched(build(body, ((2, 128, 8, 9), "float32")), [draw(2, 128, 8, 9)])
    assert name.startswith("convolution_added_up")


def whole_numbers(*shape: int) -> np.ndarray:
    return RNG.integers(-3, 4, shape).astype("float32")


def lines(emit: Any, y: Any) -> Any:
    """Tensors with one of the two axes of places, alone, with images, and with channels."""
    y = emit(R.add(y, relax.const(whole_numbers(5))))
    y = emit(R.multiply(y, relax.const(whole_numbers(3, 1, 4, 1))))
    return emit(R.subtract(y, relax.const(whole_numbers(1, CHANNELS, 1, 5))))


def masked(emit: Any, y: Any) -> Any:
    mask = relax.const(RNG.random((3, CHANNELS, 4, 5)) > 0.5)
    y = emit(R.where(mask, y, R.const(-7.0)))
    return emit(R.where(relax.const(RNG.random((1, CHANNELS, 1, 1)) > 0.5), y, R.const(2.0)))


def compared(emit: Any, y: Any) -> list[Any]:
    return [emit(R.greater(y, R.const(0.0))), emit(R.astype(emit(R.less(y, R.const(3.0))), "int64"))]


def quantized(emit: Any, y: Any) -> Any:
    scaled = emit(R.round(emit(R.multiply(y, R.const(0.25)))))
    shifted = emit(R.add(emit(R.astype(scaled, "int32")), relax.const(np.arange(5, dtype="int32"))))
    return emit(R.astype(emit(R.clip(shifted, -128, 127)), "int8"))


def widened(emit: Any, y: Any) -> Any:
    return emit(R.multiply(emit(R.astype(y, "float64")), R.const(1 / 3, "float64")))


@pytest.mark.parametrize("window", [1, 3], ids=["whole sums", "divided sums"])
@pytest.mark.parametrize("behind", [lines, masked, compared, quantized, widened])
def test_other_types_and_lines_of_places(behind: Callable[..., Any], window: int) -> None:
    """TVM fuses all of that with a convolution. float32 holds the numbers exactly."""
    weight = relax.const(whole_numbers(CHANNELS, CHANNELS, window, window))

    def body(emit: Any, x: Any) -> Any:
        return behind(emit, emit(R.nn.conv2d(x, weight, padding=window // 2)))

    mod, x = build(body, ((3, CHANNELS, 4, 5), "float32")), whole_numbers(3, CHANNELS, 4, 5)
    run = run_cuda(
        mod, [x], target=TARGET, relax_pipeline=pipeline(TARGET, BY_GRID), tir_pipeline=LOWERING
    ).check()
    (launch,) = run.launches
    assert launch.name.startswith("convolution_") and launch.cooperative == (window == 3)
    for got, want in zip(run.outputs, evaluate(mod, [x]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert more_than_stock(mod, TARGET, pipeline(TARGET)) == ""


def three_added(emit: Any, x: Any) -> Any:
    """Build two of divided sums and one of whole ones: the last one adds the others' results."""
    first, second, third = emit(divided(x)), emit(convolved(x)), emit(divided(x))
    return emit(R.nn.relu(emit(R.add(emit(R.add(third, first)), second))))


def side_by_side(emit: Any, x: Any) -> list[Any]:
    """Build convolutions of three sizes that would share a launch."""
    made = emit(divided(x)), emit(divided(x, 2)), emit(convolved(x))
    return [emit(R.nn.relu(emit(R.add(y, constant(1, CHANNELS, 1, 1))))) for y in made]


@pytest.mark.parametrize("body", [three_added, side_by_side])
def test_several_convolutions_with_nothing_beside_them(body: Callable[..., Any]) -> None:
    mod = build(body, ((2, CHANNELS, 6, 6), "float32"))
    names = launched(mod, [draw(2, CHANNELS, 6, 6)])
    assert len(names) == 3 and all(name.startswith("convolution") for name in names), names
    assert more_than_stock(mod, TARGET, pipeline(TARGET)) == ""


def one_beside_a_reduction(emit: Any, x: Any) -> list[Any]:
    """Let an operator that no convolution's kernel computes read one of the two."""
    return [emit(R.nn.relu(emit(divided(x)))), emit(R.mean(emit(divided(x)), axis=[2, 3]))]


def normalized(emit: Any, x: Any) -> Any:
    return emit(R.nn.softmax(emit(R.add(emit(divided(x)), x)), axis=1))


@pytest.mark.parametrize("body", [one_beside_a_reduction, normalized])
def test_what_else_is_done_to_divided_sums_is_stitched(body: Callable[..., Any]) -> None:
    mod = build(body, ((2, CHANNELS, 6, 6), "float32"))
    names = launched(mod, [draw(2, CHANNELS, 6, 6)])
    assert any(name.startswith("stitch_added_up") for name in names), names
    assert more_than_stock(mod, TARGET, pipeline(TARGET)) == ""


@pytest.mark.parametrize(("images", "channels", "size"), [(2, 64, 12), (4, 128, 9)], ids=str)
def test_blocks_that_do_not_run_at_once(images: int, channels: int, size: int) -> None:
    """Their sums are not divided: none waits for one that has not begun."""
    config, options = StitchConfig(multiprocessors=2, clusters=False), Options(multiprocessors=2)
    weight = constant(channels, channels, 3, 3)
    shape = (images, channels, size, size)
    mod = build(lambda emit, x: emit(R.nn.relu(emit(R.nn.conv2d(x, weight, padding=1)))), (shape, "float32"))
    x = draw(*shape)
    run = run_lowered(lower(mod, TARGET, pipeline(TARGET, config), LOWERING), [x], options=options).check()
    (launch,) = run.launches
    assert not launch.cooperative and launch.name == "convolution_relu_kernel"
    assert mismatches(list(run.outputs), evaluate(mod, [x]), TOLERANCE) == []


def test_a_device_that_does_not_hold_all_blocks_is_refused() -> None:
    mod = build(lambda emit, x: emit(R.nn.relu(emit(divided(x)))), ((1, CHANNELS, 9, 9), "float32"))
    x, lowered = (
        draw(1, CHANNELS, 9, 9),
        lower(mod, TARGET, pipeline(TARGET, StitchConfig(clusters=False)), LOWERING),
    )
    run_lowered(lowered, [x], options=Options(multiprocessors=12)).check()
    with pytest.raises(RuntimeError, match="needs more than the device of its arguments has"):
        run_lowered(lowered, [x], options=Options(multiprocessors=2))


def test_without_barriers_a_stitched_kernel_adds_up() -> None:
    config = StitchConfig(grid_barriers=False, clusters=False)
    mod = build(lambda emit, x: emit(R.nn.relu(emit(divided(x)))), ((1, CHANNELS, 9, 9), "float32"))
    counted = count_kernels(mod, TARGET, pipeline(TARGET, config))
    assert counted.names == ("convolution_kernel", "stitch_added_up_relu_kernel")


def test_convolutions_of_other_sizes_share_a_kernel() -> None:
    def body(emit: Any, x: Any) -> Any:
        for inputs, channels in ((64, 64), (64, 128)):
            y = emit(R.nn.conv2d(x, constant(channels, inputs, 1, 1)))
            x = emit(R.nn.relu(emit(R.add(y, constant(1, channels, 1, 1)))))
        return x

    mod = build(body, ((2, CHANNELS, 6, 6), "float32"))
    assert len(set(launched(mod, [draw(2, CHANNELS, 6, 6)]))) == 1


@pytest.mark.parametrize("convolution", [convolved, divided])
def test_what_is_told_of_it(convolution: Callable[..., Any]) -> None:
    mod = build(lambda emit, x: bias(emit, emit(convolution(x)), x), ((3, CHANNELS, 6, 6), "float32"))
    told = explain(mod, TARGET)
    assert told.model is not None and not told.model.boundaries
    (kernel,) = told.model.kernels
    assert kernel.kind == "compute" and kernel.note.startswith("our kernel: tiles of")
    assert [told.model.operators[o].operator for o in kernel.operators] == ["nn.conv2d", "add"]
