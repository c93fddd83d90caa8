# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions with the phases as channels, where a library computes convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, symbol
from tests.relax import cudnn_stand_in
from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax.layout.phased_convolutions import PhasedConvolutions
from tvm_stitch.relax.pipeline import planning_passes

F32 = "float32"
OPERATORS = {3: R.nn.conv1d_transpose, 4: R.nn.conv2d_transpose, 5: R.nn.conv3d_transpose}
TORCH = {3: torch.conv_transpose1d, 4: torch.conv_transpose2d, 5: torch.conv_transpose3d}
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def phased(mod: tvm.IRModule) -> tvm.IRModule:
    return PhasedConvolutions(lambda: True, CHOICES)(mod)


ATTRS = ("strides", 1), ("padding", 0), ("output_padding", 0), ("groups", 1)
CASES = [
    ((1, 5, 4, 3), (5, 7, 2, 2), {"strides": 2}),
    ((2, 5, 4, 3), (5, 7, 4, 4), {"strides": 2, "padding": 1}),
    ((1, 5, 4, 3), (5, 7, 3, 3), {"strides": 2, "padding": 1}),
    ((1, 5, 4, 3), (5, 7, 3, 3), {"strides": 2, "padding": 1, "output_padding": 1}),
    (
        (1, 6, 4, 3),
        (6, 2, 3, 4),
        {"strides": [3, 2], "padding": [2, 0], "output_padding": [2, 1], "groups": 3},
    ),
    ((1, 6, 6, 3), (6, 1, 5, 1), {"strides": [1, 1], "padding": [4, 0], "groups": 6}),
    ((1, 5, 1, 1), (5, 7, 4, 4), {"strides": 2, "padding": 1}),
    ((3, 5, 17), (5, 7, 16), {"strides": 8, "padding": 4}),
    ((1, 5, 17), (5, 7, 7), {"strides": 3, "padding": 5}),
    ((1, 3, 2, 3, 4), (3, 4, 3, 2, 4), {"strides": [2, 1, 3], "padding": [1, 0, 2]}),
    # Phases without an element of the window.
    ((1, 3, 4, 3), (3, 4, 1, 1), {"strides": 2, "output_padding": 1}),
    (
        (2, 4, 1, 5, 1),
        (4, 2, 1, 3, 1),
        {"strides": [2, 1, 2], "padding": [0, 2, 0], "output_padding": [1, 0, 1]},
    ),
]


@pytest.mark.parametrize(("data", "weight", "attrs"), CASES, ids=str)
def test_it_means_the_same(data: Any, weight: Any, attrs: dict[str, Any]) -> None:
    w, x = draw(*weight), draw(*data)
    mod = phased(build(lambda emit, x: [OPERATORS[len(data)](x, relax.const(w), **attrs)], (data, F32)))
    assert "_transpose" not in mod.script()
    made = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    more = [attrs.get(name, default) for name, default in ATTRS]
    wide = [torch.tensor(a.astype("float64")) for a in (x, w)]
    want, bound = (TORCH[x.ndim](a, b, None, *more).numpy() for a, b in (wide, [abs(v) for v in wide]))
    assert made.shape == want.shape and (np.abs(made - want) <= 1e-6 * bound).all()


@pytest.mark.parametrize(("data", "weight", "attrs"), CASES, ids=str)
def test_an_infinity_spoils_only_the_results_that_read_it(
    data: Any, weight: Any, attrs: dict[str, Any]
) -> None:
    w, x = np.abs(draw(*weight)), draw(*data)
    x.flat[x.size // 2] = np.inf
    mod = phased(build(lambda emit, x: [OPERATORS[len(data)](x, relax.const(w), **attrs)], (data, F32)))
    made = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    pick = np.isinf(x).astype(F32)
    more = [attrs.get(name, default) for name, default in ATTRS]
    read = TORCH[x.ndim](torch.tensor(pick), torch.tensor(w), None, *more).numpy() != 0
    assert (np.isinf(made) == read).all() and not np.isnan(made).any()


def test_of_a_stride_of_two() -> None:
    w = np.arange(2 * 3 * 4, dtype=F32).reshape(2, 3, 4)
    # Of the phases of a result's channel, the first has the elements 2 and 0 of the window, the second 3 and 1.
    weight = np.stack([w[..., [2, 0]], w[..., [3, 1]]], 2).transpose(1, 2, 0, 3).reshape(6, 2, 2)
    before = build(
        lambda emit, x: [R.nn.conv1d_transpose(x, relax.const(w), strides=2, padding=1)], ((5, 2, 7), F32)
    )

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv1d(x, relax.const(np.ascontiguousarray(weight)), padding=1))
        y = emit(R.permute_dims(emit(R.reshape(y, [5, 3, 2, 8])), [0, 1, 3, 2]))
        y = emit(R.reshape(y, [5, 3, 16]))
        return [R.strided_slice(y, [2], [1], [15], assume_inbound=True)]

    tvm.ir.assert_structural_equal(phased(before), build(body, ((5, 2, 7), F32)))


@pytest.mark.parametrize(
    ("why", "shape", "attrs"),
    [
        ("its images are of symbolic size", (1, 4, "h", 5), {"strides": 2}),
        ("it is dilated, or has no elements", (1, 4, 5, 5), {"strides": 2, "dilation": 2}),
        ("its phases are of many sizes", (1, 4, 5, 5), {"strides": 5}),
        ("its padding is more than its window reaches", (1, 4, 7, 7), {"strides": 2, "padding": 3}),
    ],
)
def test_what_is_left_to_tvm(why: str, shape: Any, attrs: dict[str, Any]) -> None:
    shape = [symbol(e) if isinstance(e, str) else e for e in shape]
    w = relax.const(draw(4, 3, 2, 2))
    mod = build(lambda emit, x: [R.nn.conv2d_transpose(x, w, **attrs)], (shape, F32))
    made = phased(mod)
    tvm.ir.assert_structural_equal(without_decisions(made), mod)
    assert list(decisions_of(made).computed.values()) == [f"TVM: {why}"]


def test_a_weight_that_is_no_constant_is_left_to_tvm() -> None:
    mod = build(
        lambda emit, x, w: [R.nn.conv2d_transpose(x, w, strides=2)], ((1, 4, 5, 5), F32), ((4, 3, 2, 2), F32)
    )
    tvm.ir.assert_structural_equal(without_decisions(phased(mod)), mod)


@pytest.mark.parametrize("is_there", [True, False])
def test_in_the_pipeline_the_library_has_to_be_there(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN, "function", cudnn_stand_in.NAME)
    monkeypatch.setattr(library.CUDNN, "missing", lambda: "cuDNN is not here")
    w, b = relax.const(draw(4, 3, 4, 4)), relax.const(draw(1, 3, 1, 1))

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.add(emit(R.nn.conv2d_transpose(x, w, strides=2, padding=1)), b))
        return [R.nn.relu(y)]

    config = StitchConfig(compute="libraries" if is_there else "auto")
    with CUDA:
        made = tvm.transform.Sequential(planning_passes(CUDA, config))(build(body, ((2, 4, 5, 6), F32)))
    calls: list[str] = []
    relax.analysis.post_order_visit(
        made["main"], lambda e: calls.append(e.op.name) if isinstance(e, relax.Call) else None
    )
    assert calls.count("relax.call_dps_packed") == int(is_there)
    assert (
        calls.count("relax.call_tir") == 1
    )  # what follows is one kernel with the rearrangement, or TVM's with all
    assert any(how.startswith("cuDNN") for how in decisions_of(made).computed.values()) == is_there
