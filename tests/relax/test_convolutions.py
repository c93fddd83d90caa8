# SPDX-License-Identifier: Apache-2.0
"""Convolutions by our templates: right at every shape, fused with what is around them, and never more kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cpu.convolution import MixedTasks
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline

F32 = "float32"
TARGETS = {"sse": "x86-64", "avx2": "haswell"}


def target(name: str = "avx2") -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": TARGETS[name]})


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


PACKED = StitchConfig(packed_arguments=True)


def run(
    mod: tvm.IRModule, where: tvm.target.Target, *arrays: np.ndarray, config: StitchConfig | None = None
) -> tuple[Any, dict[str, str]]:
    recorder = Recorder()
    executable = tvm.compile(mod, where, relax_pipeline=pipeline(where, config or StitchConfig(), recorder))
    made = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return made.numpy(), recorder.computed


def expected(x: np.ndarray, w: np.ndarray, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the convolution in float64, and that of the absolute values, which bounds its errors."""
    wide = [torch.tensor(a.astype("float64")) for a in (x, w)]
    function = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[x.ndim]
    padding = attrs.pop("padding", 0)
    if isinstance(padding, list):
        each = len(padding) // 2
        sides = [side for i in reversed(range(each)) for side in (padding[i], padding[i + each])]
        wide[0], padding = torch.nn.functional.pad(wide[0], sides), 0
    more = attrs.get("strides", 1), padding, attrs.get("dilation", 1), attrs.get("groups", 1)
    x64, w64 = wide
    return function(x64, w64, None, *more).numpy(), function(abs(x64), abs(w64), None, *more).numpy()


def check(result: np.ndarray, wanted: tuple[np.ndarray, np.ndarray]) -> None:
    assert result.shape == wanted[0].shape
    assert (np.abs(result - wanted[0]) <= 1e-6 * wanted[1] + 1e-30).all()


CASES = [
    ((1, 16, 9, 9), (32, 16, 3, 3), {"padding": 1}),
    ((2, 5, 7, 6), (11, 5, 3, 3), {"padding": 1, "strides": 2}),
    ((1, 8, 9, 9), (12, 2, 3, 3), {"padding": 2, "dilation": 2, "groups": 4}),
    ((1, 20, 9, 13), (20, 1, 3, 3), {"padding": 1, "groups": 20}),
    ((1, 3, 9, 9), (3, 1, 5, 5), {"padding": 2, "strides": 2, "groups": 3}),
    ((1, 6, 9, 9), (12, 1, 3, 3), {"groups": 6}),  # several results of a channel
    ((1, 16, 9, 9), (40, 16, 1, 1), {}),
    ((1, 16, 9, 9), (40, 16, 1, 1), {"strides": 2}),
    ((1, 16, 9, 9), (40, 16, 1, 1), {"padding": 1}),
    ((1, 4, 1, 1), (7, 4, 1, 1), {}),
    ((1, 1, 5, 5), (1, 1, 5, 5), {}),
    ((1, 3, 17, 17), (8, 3, 7, 7), {"strides": 2, "padding": 3}),
    ((1, 4, 6, 8), (5, 4, 3, 2), {"padding": [1, 0, 2, 1]}),  # other borders on every side
    ((1, 4, 6, 8), (5, 4, 1, 3), {"padding": [0, 1, 0, 1], "strides": [1, 2]}),
    ((0, 4, 6, 8), (5, 4, 3, 3), {"padding": 1}),
    ((1, 6, 17), (9, 6, 4), {"padding": 1, "strides": 3}),
    ((2, 6, 17), (6, 1, 4), {"padding": 2, "groups": 6, "dilation": 2}),
    ((1, 3, 1100), (9, 3, 5), {"padding": 2, "strides": 2}),  # lines that tasks divide
    ((1, 20, 2, 530), (20, 1, 2, 3), {"padding": 1, "groups": 20}),
    ((1, 3, 5, 6, 7), (8, 3, 3, 3, 3), {"padding": 1}),
    ((1, 4, 5, 6, 7), (4, 1, 2, 3, 3), {"strides": 2, "groups": 4}),
    # Tiles across lines, long sums, and both.
    ((1, 5, 7, 7), (20, 5, 3, 3), {"padding": 1}),
    ((2, 70, 7, 7), (20, 70, 3, 3), {"padding": 1}),
    ((1, 70, 19, 14), (40, 70, 3, 3), {"padding": 1, "strides": [1, 2]}),
    ((1, 300, 12, 12), (9, 300, 2, 2), {"dilation": 2}),
    ((1, 90, 6, 5), (8, 45, 3, 3), {"padding": 1, "groups": 2, "dilation": 2}),
    ((1, 40, 4, 5, 7), (6, 40, 2, 3, 3), {"padding": 1}),
    ((1, 700, 3, 1), (5, 700, 3, 1), {"padding": 1}),
    ((1, 13, 3, 31), (10, 13, 1, 31), {"padding": [0, 15, 0, 15]}),
    # Taps that read nothing but the border for many positions: of lines, of tiles across lines, of long sums.
    ((1, 20, 32, 31), (24, 20, 3, 3), {"padding": 12, "dilation": 12}),
    ((2, 36, 13, 9), (20, 36, 3, 3), {"padding": [7, 6, 5, 6], "dilation": [6, 5]}),
    ((1, 70, 15, 17), (20, 35, 3, 3), {"padding": 6, "dilation": 6, "groups": 2, "strides": 2}),
    ((1, 300, 12, 12), (9, 300, 3, 3), {"padding": 9, "dilation": 9}),
    ((1, 24, 40), (9, 24, 3), {"padding": 18, "dilation": 18}),
    ((1, 20, 6, 5, 7), (8, 20, 3, 3, 3), {"padding": 4, "dilation": 4}),
    # Weights that do not stay in the cache while images pass.
    ((3, 200, 4, 5), (165, 200, 3, 3), {"padding": 1}),
    ((2, 300, 2, 3, 3), (70, 150, 2, 3, 3), {"padding": 1, "groups": 2}),
]
NAMES = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("data", "weight", "attrs"), CASES, ids=str)
def test_a_convolution(data: Any, weight: Any, attrs: dict[str, Any], cpu: str) -> None:
    w = draw(*weight)
    mod = build(lambda emit, x: [NAMES[len(data)](x, relax.const(w), **attrs)], (data, F32))
    x = draw(*data)
    result, computed = run(mod, target(cpu), x)
    check(result, expected(x, w, **attrs))
    assert len(computed) == min(data[0], 1) and all(
        how.startswith("our template") for how in computed.values()
    )


@pytest.mark.parametrize(("dilation", "asks"), [(1, False), (2, False), (12, True)])
def test_kernels_ask_whether_taps_read_the_image_if_many_do_not(
    monkeypatch: pytest.MonkeyPatch, dilation: int, asks: bool
) -> None:
    """Dilated by 24, a convolution of 256 channels of 32 x 32 takes 3.5 ms on a core of an AMD EPYC, else 11.6."""
    guards: list[Any] = []
    guard_of = MixedTasks._guard

    def noted(tasks: MixedTasks, positions: Any) -> Any:
        guards.append(guard_of(tasks, positions))
        return guards[-1]

    monkeypatch.setattr(MixedTasks, "_guard", noted)
    w = draw(16, 8, 3, 3)
    attrs = {"padding": dilation, "dilation": dilation}
    run(
        build(lambda emit, x: [R.nn.conv2d(x, relax.const(w), **attrs)], ((1, 8, 32, 32), F32)),
        target(),
        draw(1, 8, 32, 32),
    )
    assert guards and [guard is not None for guard in guards] == [asks] * len(guards)


@pytest.mark.parametrize("images", [0, 1, 2, 5])
def test_a_symbolic_number_of_images(images: int) -> None:
    w, depthwise = draw(12, 6, 3, 3), draw(12, 1, 3, 3)

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, relax.const(w), padding=1))
        return [R.nn.conv2d(y, relax.const(depthwise), padding=1, groups=12)]

    x = draw(images, 6, 10, 10)
    result, computed = run(build(body, ((symbol("n"), 6, 10, 10), F32)), target(), x)
    middle = expected(x, w, padding=1)[0].astype(F32)
    np.testing.assert_allclose(
        result, expected(middle, depthwise, padding=1, groups=12)[0], rtol=1e-4, atol=1e-4
    )
    assert len(computed) == 2 and all(how.startswith("our template") for how in computed.values())


def test_data_that_is_read_as_it_lies() -> None:
    first, second, third = draw(12, 6, 3, 3), draw(12, 1, 2, 3), draw(5, 12, 3, 2)

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, relax.const(first)))
        y = emit(R.nn.conv2d(y, relax.const(second), groups=12))
        return [R.nn.conv2d(y, relax.const(third), strides=2)]

    x = draw(3, 6, 10, 11)
    result, _ = run(build(body, (x.shape, F32)), target(), x)
    wide = expected(x, first)[0]
    wide = expected(expected(wide, second, groups=12)[0], third, strides=2)[0]
    np.testing.assert_allclose(result, wide, rtol=1e-4, atol=1e-4)


def test_not_a_number_and_infinity_stay_where_they_are_seen() -> None:
    w = draw(4, 3, 3, 3)
    x = draw(1, 3, 8, 8)
    x[0, 1, 2, 2], x[0, 0, 6, 6] = np.nan, np.inf
    result, _ = run(
        build(lambda emit, x: [R.nn.conv2d(x, relax.const(w), padding=1)], (x.shape, F32)), target(), x
    )
    wide = expected(x, w, padding=1)[0]
    np.testing.assert_array_equal(np.isnan(result), np.isnan(wide))
    np.testing.assert_array_equal(np.isinf(result), np.isinf(wide))


def block(emit: Any, x: Any) -> list[Any]:
    """Models have such parts: a norm, heavy activations, a residual, two branches, a mean."""
    rng = np.random.default_rng(0)

    def draw_of(*shape: int) -> Any:
        return relax.const(rng.standard_normal(shape).astype(F32) / 4)

    norm = [relax.const(np.abs(rng.standard_normal(24)).astype(F32) + 0.5) for _ in range(4)]
    y = emit(R.nn.conv2d(x, draw_of(24, 8, 3, 3), strides=2, padding=1))
    y = emit(relax.TupleGetItem(emit(R.nn.batch_norm(y, *norm, axis=1, training=False)), 0))
    y = emit(R.nn.silu(y))
    z = emit(R.nn.conv2d(y, draw_of(24, 1, 3, 3), padding=1, groups=24))
    z = emit(R.nn.gelu(emit(R.add(z, draw_of(1, 24, 1, 1)))))
    z = emit(R.nn.conv2d(z, draw_of(24, 24, 1, 1)))
    z = emit(R.nn.relu(emit(R.add(z, y))))
    shortcut = emit(R.nn.conv2d(x, draw_of(24, 8, 1, 1), strides=2))
    z = emit(R.add(z, shortcut))
    return [z, R.mean(z, [2, 3])]


def test_a_block_with_what_is_around_convolutions() -> None:
    mod = build(block, ((1, 8, 14, 14), F32))
    x = draw(1, 8, 14, 14)
    results = {}
    for name, chosen in (("stock", relax.get_default_pipeline(target())), ("ours", pipeline(target()))):
        vm = relax.VirtualMachine(tvm.compile(mod, target(), relax_pipeline=chosen), tvm.cpu())
        results[name] = [r.numpy() for r in vm["main"](tvm.runtime.tensor(x))]
    for ours, stock in zip(results["ours"], results["stock"], strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-4, atol=2e-4)
    stock_count, count = count_kernels(mod, target()), count_kernels(mod, target(), pipeline(target()))
    assert count.total <= stock_count.total and count.memory_intensive <= stock_count.memory_intensive
    assert (count.total, count.memory_intensive) == (5, 1)


def test_the_transpositions_at_both_ends_take_no_kernel() -> None:
    w = draw(16, 8, 3, 3)
    mod = build(
        lambda emit, x: [R.nn.relu(emit(R.nn.conv2d(x, relax.const(w), padding=1)))], ((1, 8, 7, 7), F32)
    )
    assert count_kernels(mod, target(), pipeline(target())).total == 1
    x = draw(1, 8, 7, 7)
    result, _ = run(mod, target(), x)
    wide = expected(x, w, padding=1)
    check(result, (np.maximum(wide[0], 0), wide[1]))


@pytest.mark.parametrize("number", [1, 2, 3, 5, 15, 16, 19, 22, 24])
def test_weights_that_are_no_constants_are_packed_in_the_call(number: int) -> None:
    data, weight, attrs = CASES[number]
    mod = build(lambda emit, x, w: [NAMES[len(data)](x, w, **attrs)], (data, F32), (weight, F32))
    x, w = draw(*data), draw(*weight)
    result, computed = run(mod, target(), x, w, config=PACKED)
    check(result, expected(x, w, **attrs))
    assert all(how.endswith("weight packed in each call") for how in computed.values()) and computed


def test_weights_that_are_no_constants_are_left_to_tvm_by_default() -> None:
    """TVM's convolution is one kernel, and packing would be a second one."""
    mod = build(lambda emit, x, w: [R.nn.conv2d(x, w, padding=1)], ((1, 3, 6, 6), F32), ((4, 3, 3, 3), F32))
    x, w = draw(1, 3, 6, 6), draw(4, 3, 3, 3)
    result, computed = run(mod, target(), x, w)
    check(result, expected(x, w, padding=1))
    assert computed["conv2d"].startswith("TVM: its channels are not innermost")


def test_a_weight_that_two_convolutions_read_is_packed_once() -> None:
    def twice(emit: Any, x: Any, w: Any) -> list[Any]:
        return [R.nn.conv2d(emit(R.nn.conv2d(x, w, padding=1)), w, padding=1)]

    mod = build(twice, ((1, 16, 6, 6), F32), ((16, 16, 3, 3), F32))
    names = [launch[0] for launch in count_kernels(mod, target(), pipeline(target(), PACKED)).launches]
    assert sum(name.startswith("packed_weight") for name in names) == 1 and len(names) == 3
    x, w = draw(1, 16, 6, 6), draw(16, 16, 3, 3)
    once, bound = expected(x, w, padding=1)
    wide = expected(once.astype(F32), w, padding=1)[0]
    result, _ = run(mod, target(), x, w, config=PACKED)
    np.testing.assert_allclose(result, wide, atol=1e-5 * bound.max())


def test_an_argument_of_half_type_and_a_constant_have_the_same_result() -> None:
    data, weight = (1, 6, 7, 7), (9, 6, 3, 3)
    x, w = draw(*data).astype("float16"), draw(*weight).astype("float16")
    made = [
        build(lambda emit, x, v, w=w: [R.nn.conv2d(x, v if w is None else relax.const(w))], *of)
        for of, w in (
            (((data, "float16"), (weight, "float16")), None),
            (((data, "float16"), (weight, "float16")), w),
        )
    ]
    results = [run(mod, target(), x, w, config=PACKED)[0] for mod in made]
    np.testing.assert_array_equal(*results)


def test_images_of_symbolic_size_are_left_to_tvm() -> None:
    w = draw(4, 3, 3, 3)
    mod = build(lambda emit, x: [R.nn.conv2d(x, relax.const(w), padding=1)], ((1, 3, symbol("h"), 6), F32))
    x = draw(1, 3, 5, 6)
    result, computed = run(mod, target(), x)
    check(result, expected(x, w, padding=1))
    assert computed["conv2d"].startswith("TVM: its channels are not innermost")
