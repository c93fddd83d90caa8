# SPDX-License-Identifier: Apache-2.0
"""Transpositions of axes of extent 1 are reshapes, so that einsums of attention are recognised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.relax import op as R

from tests.graph.helpers import build, draw, on_llvm
from tvm_stitch import StitchConfig
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.attention.fused import FusedAttention
from tvm_stitch.relax.layout.unit_axes import UnitAxes
from tvm_stitch.relax.rewriting.contents import contents_of
from tvm_stitch.relax.rewriting.views import shape_of

Emit = Callable[[Any], Any]
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
HEADS = ((2, 3, 4, 16, 32), "float16")


def einsums(emit: Emit, q: Any, k: Any, v: Any) -> Any:
    """Build attention in windows as PyTorch decomposes ``einsum("BGHID,BGHJD->BGHIJ")`` and the one behind it."""
    left = emit(R.permute_dims(emit(R.expand_dims(q, 5)), [0, 1, 2, 3, 5, 4]))
    right = emit(R.permute_dims(emit(R.expand_dims(k, 5)), [0, 1, 2, 5, 3, 4]))
    left = emit(R.reshape(emit(R.permute_dims(left, [0, 1, 2, 3, 5, 4])), [24, 16, 32]))
    right = emit(R.reshape(emit(R.permute_dims(right, [0, 1, 2, 5, 4, 3])), [24, 32, 16]))
    scores = emit(R.reshape(emit(R.matmul(left, right)), [2, 3, 4, 16, 1, 16]))
    scores = emit(R.reshape(emit(R.permute_dims(scores, [0, 1, 2, 3, 5, 4])), [2, 3, 4, 16, 16]))
    weights = emit(R.nn.softmax(scores))
    weights = emit(R.permute_dims(emit(R.expand_dims(weights, 5)), [0, 1, 2, 3, 5, 4]))
    weights = emit(R.reshape(emit(R.permute_dims(weights, [0, 1, 2, 3, 5, 4])), [24, 16, 16]))
    value = emit(R.permute_dims(emit(R.expand_dims(v, 5)), [0, 1, 2, 5, 4, 3]))
    value = emit(R.reshape(emit(R.permute_dims(value, [0, 1, 2, 5, 4, 3])), [24, 16, 32]))
    return R.reshape(emit(R.matmul(weights, value)), [2, 3, 4, 16, 32])


def transposed(mod: tvm.IRModule) -> list[tuple[Any, ...]]:
    return [tuple(shape_of(call) or ()) for call in contents_of(mod["main"]).get("relax.permute_dims", ())]


def test_attention_in_einsums_is_one_kernel() -> None:
    mod = build(einsums, *[HEADS] * 3)
    after = UnitAxes()(mod)
    assert transposed(after) == [(2, 3, 4, 32, 16)]
    for each, words in (mod, "one by one"), (after, "our kernel"):
        computed = decisions_of(FusedAttention(CUDA, StitchConfig())(each)).computed
        assert all(words in text for text in computed.values()), computed
    assert decisions_of(FusedAttention(CUDA, StitchConfig())(after)).computed


def test_the_same_is_computed() -> None:
    specs = [((2, 3, 4, 16, 32), "float32")] * 3
    mod = build(einsums, *specs)
    inputs = draw(specs)
    for mine, wanted in zip(on_llvm(UnitAxes()(mod), *inputs), on_llvm(mod, *inputs), strict=True):
        np.testing.assert_allclose(mine, wanted, 1e-5, 1e-5)


def test_other_transpositions_stay() -> None:
    """A batch of one image has an axis of extent 1, which no operator added."""

    def body(emit: Emit, x: Any) -> Any:
        image = emit(R.permute_dims(x, [0, 2, 3, 1]))
        rows = emit(R.reshape(emit(R.exp(image)), [1, 15, 8]))
        return R.reshape(emit(R.permute_dims(rows, [0, 2, 1])), [1, 8, 3, 5])

    before = build(body, ((1, 8, 3, 5), "float32"))
    assert transposed(UnitAxes()(before)) == [(1, 3, 5, 8), (1, 8, 15)]


def test_a_batch_of_one_that_stays_in_front() -> None:
    """Heads behind a product of one image: later passes know the transposition of the whole shape."""

    def body(emit: Emit, x: Any) -> Any:
        return R.permute_dims(emit(R.reshape(emit(R.exp(x)), [1, 2, 13, 8])), [0, 2, 1, 3])

    before = build(body, ((2, 13, 8), "float32"))
    tvm.ir.assert_structural_equal(UnitAxes()(before), before)
