# SPDX-License-Identifier: Apache-2.0
"""Convolutions become calls of cuDNN that mean the same, or are left with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.convolutions import LibraryConvolutions
from tvm_stitch.relax.pipeline import planning_passes

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
ASKED = StitchConfig(compute="libraries")


pytestmark = pytest.mark.usefixtures("cudnn_in_numpy")


def rewritten(mod: tvm.IRModule, config: StitchConfig = ASKED, target: Any = CUDA) -> tuple[Any, list[str]]:
    made = LibraryConvolutions(target, config)(mod)
    return without_decisions(made), list(decisions_of(made).computed.values())


def modes(mod: tvm.IRModule) -> list[str]:
    found: list[str] = []
    relax.analysis.post_order_visit(
        mod["main"],
        lambda e: (
            found.append(str(e.args[1].fields[-1].value))
            if getattr(getattr(e, "op", None), "name", "") == "relax.call_dps_packed"
            else None
        ),
    )
    return found


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm"))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), (5, 3, 3), {}),
    ((1, 4, 9), (6, 2, 3), {"strides": 2, "padding": 1, "groups": 2}),
    ((2, 3, 9, 7), (5, 3, 3, 2), {"padding": (1, 0)}),
    ((1, 6, 11, 13), (6, 1, 5, 3), {"groups": 6, "padding": (2, 1), "dilation": (1, 2)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((3, 4, 8, 8), (8, 4, 2, 2), {"strides": (2, 3)}),
    ((1, 2, 5, 6, 7), (3, 2, 3, 1, 2), {"strides": (1, 2, 1), "padding": (1, 0, 1)}),
]
OPERATORS = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}
LAST = {3: ("NWC", "OWI"), 4: ("NHWC", "OHWI"), 5: ("NDHWC", "ODHWI")}


@pytest.mark.parametrize(
    ("last", "symbolic"), [(False, False), (True, False), (False, True)], ids=["first", "last", "symbolic"]
)
@pytest.mark.parametrize(("shape", "kernel", "attrs"), CASES)
def test_convolutions_mean_the_same(
    shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], last: bool, symbolic: bool
) -> None:
    x, w = draw(*shape), draw(*kernel)
    torch_function = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[x.ndim]
    more = [attrs.get(k, d) for k, d in (("strides", 1), ("padding", 0), ("dilation", 1), ("groups", 1))]
    wanted = torch_function(torch.tensor(x).double(), torch.tensor(w).double(), None, *more).numpy()
    given = dict(attrs)
    if last:
        x, w, wanted = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w, wanted))
        given |= {"data_layout": LAST[x.ndim][0], "kernel_layout": LAST[x.ndim][1]}
    extents = [symbol(), *x.shape[1:]] if symbolic else list(x.shape)
    operator = OPERATORS[x.ndim]
    mod = build(lambda emit, a, b: operator(a, b, **given), (extents, "float32"), (list(w.shape), "float32"))
    made, how = rewritten(mod)
    assert modes(made) == [f"channels_{'last' if last else 'first'}" + ("" if symbolic else " timed")]
    assert how == [f"cuDNN: channels {'last' if last else 'first'}"]
    np.testing.assert_allclose(run(made, x, w), wanted, 1e-5, 1e-5)


def conv(*shapes: tuple[Any, ...], dtype: str = "float32", **attrs: Any) -> tvm.IRModule:
    return build(lambda emit, x, w: R.nn.conv2d(x, w, **attrs), *[(list(s), dtype) for s in shapes])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("channels", "dtype", "wanted"),
    [(3, "float16", 4), (1, "float16", 4), (5, "float16", 5), (3, "float32", 3)],
)
def test_images_of_few_channels_get_some(channels: int, dtype: str, wanted: int, constant: bool) -> None:
    """Images of half types have channels last. The result stays, and the weight is widened when it is compiled."""
    x, w = draw(2, 9, 7, channels).astype(dtype), draw(6, 3, 3, channels).astype(dtype)

    def body(emit: Any, x: Any, *weights: Any) -> Any:
        weight = weights[0] if weights else relax.const(w)
        return R.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="OHWI")

    specs = [(list(x.shape), dtype), *([] if constant else [(list(w.shape), dtype)])]
    made, _ = rewritten(build(body, *specs))
    (call,) = [
        b.value
        for block in made["main"].body.blocks
        for b in block.bindings
        if hasattr(b.value, "args") and getattr(b.value.op, "name", "") == "relax.call_dps_packed"
    ]
    assert {int(operand.ty.shape[-1]) for operand in call.args[1].fields[:2]} == {wanted}
    data, weight = (torch.tensor(np.moveaxis(a, -1, 1).astype("float64")) for a in (x, w))
    exact = np.moveaxis(torch.conv2d(data, weight, padding=1).numpy(), 1, -1)
    found = run(made, x, *([] if constant else [w])).astype("float64")
    np.testing.assert_allclose(found, exact, 0, 2e-3 * abs(exact).max())


def test_tf32_is_on_request_and_of_float32_alone() -> None:
    asked = StitchConfig(compute="libraries", tf32=True)
    shapes = (1, 3, 8, 8), (4, 3, 3, 3)
    assert modes(rewritten(conv(*shapes), asked)[0]) == ["channels_first tf32 timed"]
    assert modes(rewritten(conv(*shapes, dtype="float16"), asked)[0]) == ["channels_first timed"]


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (conv((1, 3, 8, 8), (4, 3, 3, 3), padding=(0, 1, 1, 1)), "padding [0, 1, 1, 1] is not the same"),
        (conv((1, 3, 8, 8), (4, 3, 3, 3), dtype="float64"), "float64"),
        (conv((1, 3, 8, 8), (4, 3, 3, 3), dtype="float16", out_dtype="float32"), "in float32"),
        (conv((1, 8, 8, 3), (3, 3, 3, 4), data_layout="NHWC", kernel_layout="HWIO"), "layouts NHWC, HWIO"),
        (conv((1, 3, 8, 8), (4, 3, 3, 3), out_layout="NHWC"), "layouts NCHW, OIHW"),
    ],
)
def test_what_the_library_does_not_compute_is_tvms(mod: tvm.IRModule, reason: str) -> None:
    made, how = rewritten(mod)
    assert modes(made) == [] and len(how) == 1 and how[0].startswith("TVM: ") and reason in how[0]
    tvm.ir.assert_structural_equal(made["main"], mod["main"])


@pytest.mark.parametrize("shapes", [((0, 3, 8, 8), (4, 3, 3, 3)), ((1, 0, 8, 8), (4, 0, 3, 3))])
def test_what_has_no_elements_is_no_convolution(shapes: Any) -> None:
    for asked in (ASKED, StitchConfig()):
        made, how = rewritten(conv(*shapes), asked)
        assert modes(made) == how == []


def test_without_the_library_all_are_tvms_and_the_reason_is_told() -> None:
    mod = conv((1, 3, 8, 8), (4, 3, 3, 3))
    made, how = rewritten(mod, StitchConfig())
    assert how == ["TVM: cuDNN is not here"] and tvm_ffi.structural_equal(made, mod)
    made = tvm.transform.Sequential(planning_passes(CUDA, StitchConfig()))(mod)
    assert decisions_of(made).computed == {"1 convolution": "TVM: cuDNN is not here"}


def test_an_interrupt_while_the_library_is_opened_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.CUDNN, "missing", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rewritten(conv((1, 3, 8, 8), (4, 3, 3, 3)))


def test_what_follows_is_one_kernel() -> None:
    """Batch norm, a residual and an activation: one stitch op between two convolutions."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, relax.const(draw(3, 3, 3, 3)), padding=1))
        stats = [relax.const(np.abs(draw(3)) + 0.5) for _ in range(4)]
        y = emit(relax.TupleGetItem(emit(R.nn.batch_norm(y, *stats, axis=1, training=False)), 0))
        y = emit(R.nn.relu(emit(R.add(y, x))))
        return R.nn.conv2d(y, relax.const(draw(4, 3, 3, 3)), padding=1)

    mod = build(body, ([2, 3, 8, 8], "float32"))
    found = decisions_of(tvm.transform.Sequential(planning_passes(CUDA, ASKED))(mod))
    assert list(found.computed.values()) == ["cuDNN: channels first"] * 2
    assert len(found.plans) == 1 and not found.refused()


def test_without_convolutions_the_library_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening it, and compiling the calls of it, takes seconds."""
    asked: list[bool] = []
    monkeypatch.setattr(library.CUDNN, "missing", lambda: asked.append(True) or "cuDNN is not here")
    mod = build(lambda emit, x: R.nn.relu(x), ([4, 8], "float16"))
    tvm.transform.Sequential(planning_passes(CUDA, StitchConfig()))(mod)
    assert not asked
    tvm.transform.Sequential(planning_passes(CUDA, StitchConfig()))(conv((1, 3, 8, 8), (4, 3, 3, 3)))
    assert asked


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("data", "kernel", "attrs"),
    [
        ((2, 4, 7), (4, 3, 3), {"strides": 2, "padding": 1, "output_padding": 1}),
        ((2, 4, 5, 6), (4, 3, 1, 1), {"strides": 2, "output_padding": 1}),
        ((1, 4, 5, 6), (4, 3, 3, 2), {"strides": (2, 3), "padding": 1, "groups": 2}),
        ((1, 2, 5, 6), (2, 3, 3, 3), {"dilation": 2}),
        ((1, 2, 3, 4, 5), (2, 3, 2, 3, 1), {"strides": (1, 2, 1)}),
    ],
)
def test_transposed_convolutions_are_gradients_of_data(
    data: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], symbolic: bool
) -> None:
    x, w = draw(*data), draw(*kernel)
    function = {
        3: torch.nn.functional.conv_transpose1d,
        4: torch.nn.functional.conv_transpose2d,
        5: torch.nn.functional.conv_transpose3d,
    }[x.ndim]
    given = {("stride" if name == "strides" else name): value for name, value in attrs.items()}
    wanted = function(torch.tensor(x).double(), torch.tensor(w).double(), None, **given).numpy()
    operator = {3: R.nn.conv1d_transpose, 4: R.nn.conv2d_transpose, 5: R.nn.conv3d_transpose}[x.ndim]
    extents = [symbol(), *x.shape[1:]] if symbolic else list(x.shape)
    mod = build(lambda emit, a, b: operator(a, b, **attrs), (extents, "float32"), (list(w.shape), "float32"))
    made, how = rewritten(mod)
    assert modes(made) == ["channels_first" + ("" if symbolic else " timed") + " data_gradient"]
    assert how == ["cuDNN: channels first"]
    np.testing.assert_allclose(run(made, x, w), wanted, 1e-5, 1e-5)
