# SPDX-License-Identifier: Apache-2.0
"""The convolutions that the package's CUDA kernel takes, their results, and models with them in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.script import relax as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.choices import change_choices
from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library import own_convolutions
from tvm_stitch.relax.library.own_convolutions import OwnConvolutions
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

TARGET = emulated_target()
RNG = np.random.default_rng()


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def conv(shape: Any, weight: Any, dtype: str = "float32", **attrs: Any) -> tvm.IRModule:
    constant = relax.const(draw(*weight).astype(dtype))
    operator = R.nn.conv1d if len(weight) == 3 else R.nn.conv2d
    return build(lambda emit, x: operator(x, constant, **attrs), (list(shape), dtype))


def rewritten(mod: tvm.IRModule, config: StitchConfig | None = None, target: Any = TARGET) -> Any:
    made = OwnConvolutions(target, config)(mod)
    return without_decisions(made), dict(decisions_of(made).computed)


def calls(mod: tvm.IRModule) -> list[str]:
    values = relax.analysis.get_var2val(mod["main"]).values()
    return [
        v.args[0].name_hint if v.op.name == "relax.call_tir" else v.op.name
        for v in values
        if isinstance(v, relax.Call)
    ]


def test_before_and_after() -> None:
    """Sums are divided, and added up by a function that fuses with what follows."""
    made, computed = rewritten(conv((1, 128, 14, 14), (128, 128, 3, 3), padding=1))
    assert calls(made) == ["convolution", "added_up"]
    (told,) = computed.values()
    assert told.startswith("our kernel: tiles of 64 channels x") and told.endswith("splits")
    relax.analysis.well_formed(made)


def test_undivided() -> None:
    made, _ = rewritten(conv((16, 64, 56, 56), (64, 64, 3, 3), padding=1))
    assert calls(made) == ["convolution"]


def test_convolutions_that_differ_in_sizes_share_a_kernel() -> None:
    def body(emit: Any, x: Any) -> Any:
        for channels in (64, 128, 256):
            weight = relax.const(draw(128 if channels < 256 else 64, 64 if channels == 64 else 128, 3, 3))
            x = emit(R.nn.conv2d(x, weight, padding=1))
        return x

    made, computed = rewritten(build(body, ([1, 64, 28, 28], "float32")))
    assert len(computed) == 3
    assert sum("convolution" in g.name_hint for g in made.get_global_vars()) < 3


@pytest.mark.parametrize(
    ("mod", "config"),
    [
        (conv((1, 64, 28, 28), (64, 64, 3, 3), "float16"), None),
        (conv((1, 28, 28, 64), (64, 3, 3, 64), data_layout="NHWC", kernel_layout="OHWI"), None),
        (conv((1, 64, 28, 28), (64, 64, 3, 3), padding=(0, 1, 1, 1)), None),
        (conv((1, 64, 28, 28), (64, 1, 3, 3), groups=64), None),
        (conv((symbol("n"), 64, 28, 28), (64, 64, 3, 3)), None),
        (conv((0, 64, 28, 28), (64, 64, 3, 3)), None),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(tf32=True)),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(compute="tvm")),
        (conv((1, 64, 28, 28), (64, 64, 3, 3)), StitchConfig(compute="libraries")),
        (
            build(
                lambda emit, x, w: R.nn.conv2d(x, w), ([1, 64, 9, 9], "float32"), ([64, 64, 3, 3], "float32")
            ),
            None,
        ),
    ],
)
def test_others_stay(mod: tvm.IRModule, config: StitchConfig | None) -> None:
    made, computed = rewritten(mod, config)
    assert not computed
    tvm.ir.assert_structural_equal(made, mod)


def test_devices_without_copies_in_the_background() -> None:
    mod = conv((1, 64, 28, 28), (64, 64, 3, 3))
    made, _ = rewritten(mod, target=tvm.target.Target({"kind": "cuda", "arch": "sm_75"}))
    tvm.ir.assert_structural_equal(made, mod)


@pytest.mark.parametrize("images", [1, 3])
def test_a_residual_block_in_the_emulator(images: int) -> None:
    """One kernel for each convolution, whether its sums are divided or not."""
    first, second, bias = draw(64, 64, 3, 3), draw(64, 64, 1, 1), draw(1, 64, 1, 1)

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, relax.const(first), padding=1))
        y = emit(R.nn.relu(emit(R.add(y, relax.const(bias)))))
        y = emit(R.nn.conv2d(y, relax.const(second)))
        return emit(R.nn.relu(emit(R.add(y, x))))

    x = draw(images, 64, 9, 7)
    recorder = Recorder()
    made = pipeline(TARGET, None, recorder)
    run = run_cuda(
        build(body, (list(x.shape), "float32")),
        [x],
        relax_pipeline=made,
        target=TARGET,
        tir_pipeline=LOWERING,
    ).check()
    assert [told.split(":")[0] for told in recorder.computed.values()] == ["our kernel", "our kernel"]
    assert any("splits" in told for told in recorder.computed.values()) and len(run.launches) == 2
    exact = torch.tensor(x).double()
    inner = torch.relu(
        torch.conv2d(exact, torch.tensor(first).double(), padding=1) + torch.tensor(bias).double()
    )
    wanted = torch.relu(torch.conv2d(inner, torch.tensor(second).double()) + exact).numpy()
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=3e-6 * abs(wanted).max())


# -- computed weights ---------------------------------------------------------------------------------------------
@pytest.fixture()
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed however small the convolution is."""
    change_choices(monkeypatch, packed_multiplications=0)


def of_weight(operator: Any, x: Any, weight: Any, **attrs: Any) -> tvm.IRModule:
    return build(
        lambda emit, data, w: operator(data, w, **attrs), (list(x), "float32"), (list(weight), "float32")
    )


def test_small_ones_of_computed_weights_stay() -> None:
    mod = of_weight(R.nn.conv2d, (1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    made, computed = rewritten(mod)
    assert not computed
    tvm.ir.assert_structural_equal(made, mod)


def test_large_ones_of_computed_weights() -> None:
    made, _ = rewritten(of_weight(R.nn.conv2d, (32, 64, 56, 56), (64, 64, 3, 3), padding=1))
    assert calls(made) == ["relax.reshape", "relax.permute_dims", *2 * ["relax.reshape"], "convolution"]


COMPUTED = [
    (R.nn.conv2d, (2, 20, 9, 8), (60, 20, 3, 3), {"padding": 1}),
    (R.nn.conv2d, (2, 34, 11, 8), (120, 17, 3, 3), {"padding": 1, "groups": 2, "strides": [1, 2]}),
    (R.nn.conv1d, (3, 24, 31), (60, 24, 3), {"padding": 1}),
    (R.nn.conv2d_transpose, (2, 6, 9, 8), (6, 50, 3, 2), {"padding": [2, 1], "dilation": [2, 1]}),
    (R.nn.conv2d_transpose, (2, 34, 9, 8), (34, 60, 3, 2), {"groups": 2}),
    (R.nn.conv1d_transpose, (3, 18, 31), (18, 60, 4), {"padding": 2}),
]


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(("operator", "x", "weight", "attrs"), COMPUTED)
def test_computed_weights_in_the_emulator(operator: Any, x: Any, weight: Any, attrs: dict[str, Any]) -> None:
    """The weight is packed by one kernel, and the other adds up its own splits."""
    inputs, recorder = [draw(*x), draw(*weight)], Recorder()
    mod = of_weight(operator, x, weight, **attrs)
    run = run_cuda(
        mod, inputs, relax_pipeline=pipeline(TARGET, None, recorder), target=TARGET, tir_pipeline=LOWERING
    ).check()
    (told,) = recorder.computed.values()
    assert told.startswith("our kernel")
    assert len(run.launches) == 2
    transposed = "_transpose" if "transpose" in operator.__name__ else ""
    function = getattr(torch, f"conv{transposed}{len(x) - 2}d")
    given = {"stride" if key == "strides" else key: value for key, value in attrs.items()}
    wanted = function(*(torch.tensor(each).double() for each in inputs), **given).numpy()
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=3e-6 * abs(wanted).max())


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": 2},
        {"padding": 3},
        {"padding": [0, 1, 1, 1]},
    ],
    ids=str,
)
def test_transposed_ones_that_stay(attrs: dict[str, Any]) -> None:
    made, computed = rewritten(of_weight(R.nn.conv2d_transpose, (2, 64, 9, 9), (64, 64, 3, 3), **attrs))
    assert not computed
    assert calls(made) == ["relax.nn.conv2d_transpose"]


# -- gradients of weights -----------------------------------------------------------------------------------------
def weights_gradient(x: Any, outputs: int, kernel: int, stride: int, padding: int) -> tuple[Any, Any, Any]:
    """Return a module as importers write it, its inputs, and the gradient in float64."""
    from tests.relax.library.test_weight_gradients import module

    data, spatial = draw(*x), len(x) - 2
    function: Any = torch.conv2d if spatial == 2 else torch.conv1d
    shape = (outputs, x[1], *[kernel] * spatial)
    w = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = function(torch.tensor(data).double(), w, None, stride, padding)
    g = draw(*y.shape)
    y.backward(torch.tensor(g).double())
    assert w.grad is not None
    return module(x, tuple(y.shape), shape[2:], stride, padding, 1), [data, g], w.grad.numpy()


@pytest.mark.parametrize(
    ("x", "outputs", "kernel", "stride", "padding"),
    [
        ((20, 14, 9, 8), 60, 3, 2, 1),
        ((3, 13, 9, 9), 62, 3, 1, 1),
        ((17, 60, 8, 8), 50, 1, 2, 0),
        ((5, 20, 17), 50, 5, 3, 2),
    ],
)
def test_gradients_of_weights_in_the_emulator(
    x: Any, outputs: int, kernel: int, stride: int, padding: int
) -> None:
    """One kernel packs the result's gradient, one computes, and one adds up and transposes."""
    mod, inputs, wanted = weights_gradient(x, outputs, kernel, stride, padding)
    recorder = Recorder()
    run = run_cuda(
        mod, inputs, relax_pipeline=pipeline(TARGET, None, recorder), target=TARGET, tir_pipeline=LOWERING
    ).check()
    (told,) = recorder.computed.values()
    assert told.startswith("our kernel") and told.endswith("a weight's gradient")
    assert len(run.launches) == 3
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=3e-6 * abs(wanted).max())


def test_gradients_with_epilogues_in_the_emulator() -> None:
    """Of a gradient that is read as the convolution gave it, of sums that are not divided."""
    x, g = draw(2, 60, 4, 4), draw(2, 60, 4, 4)

    def body(emit: Any, x: Any, g: Any) -> Any:
        data, gradient = (emit(R.permute_dims(value, [1, 0, 2, 3])) for value in (x, g))
        return emit(R.nn.relu(emit(R.nn.conv2d(data, gradient, padding=1))))

    mod, recorder = build(body, (x.shape, "float32"), (g.shape, "float32")), Recorder()
    run = run_cuda(
        mod, [x, g], relax_pipeline=pipeline(TARGET, None, recorder), target=TARGET, tir_pipeline=LOWERING
    ).check()
    (told,) = recorder.computed.values()
    assert "splits" not in told and told.endswith("a weight's gradient") and len(run.launches) == 2
    exact = [torch.tensor(value).double().transpose(0, 1) for value in (x, g)]
    wanted = torch.relu(torch.conv2d(*exact, padding=1)).numpy()
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=0, atol=3e-6 * abs(wanted).max())


def test_gradients_that_the_library_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its own where it is there, unless our kernel is asked for."""
    mod, _, _ = weights_gradient((32, 64, 14, 14), 64, 3, 1, 1)
    assert own_convolutions.library is library
    monkeypatch.setattr(library, "why_not", lambda *_: None)
    made, computed = rewritten(mod)
    assert not computed and "relax.nn.conv2d" in calls(made)
    _, computed = rewritten(mod, StitchConfig(compute="templates"))
    assert len(computed) == 1
    strided, _, _ = weights_gradient((32, 64, 14, 14), 64, 3, 2, 1)
    assert len(rewritten(strided)[1]) == 1
