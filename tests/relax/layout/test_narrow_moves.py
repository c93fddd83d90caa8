# SPDX-License-Identifier: Apache-2.0
"""Elements are rounded before they are moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import Spec, build, draw, on_llvm
from tvm_stitch.relax.layout.narrow_moves import NarrowMoves
from tvm_stitch.relax.rewriting.contents import contents_of

Emit = Callable[[Any], Any]


def moved_types(mod: tvm.IRModule) -> set[str]:
    """Return the types of all tensors that are transposed or reshaped."""
    names = ("relax.permute_dims", "relax.reshape")
    return {str(call.ty.dtype) for name in names for call in contents_of(mod["main"]).get(name, ())}


def check_moves_of_halves(body: Callable[..., Any], spec: Spec) -> None:
    """Compare a module that moves float32 with what the pass makes of it: float16 is moved, and bits are equal."""
    before = build(body, spec)
    after = NarrowMoves()(before)
    assert moved_types(before) == {"float32"}
    assert moved_types(after) == {"float16"}
    inputs = draw([spec])
    for mine, wanted in zip(on_llvm(after, *inputs), on_llvm(before, *inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def windows(emit: Emit, x: Any) -> Any:
    """Divide what a norm computes into windows, and round it."""
    y = emit(R.reshape(emit(R.nn.softmax(x)), [2, 2, 3, 2, 3, 8]))
    return emit(R.reshape(emit(R.permute_dims(y, [0, 1, 3, 2, 4, 5])), [8, 9, 8]))


def test_windows_hold_rounded_elements() -> None:
    def body(emit: Emit, x: Any) -> Any:
        return emit(R.astype(windows(emit, x), "float16"))

    check_moves_of_halves(body, ((2, 6, 6, 8), "float32"))


def test_narrow_elements_are_widened_where_they_are_read() -> None:
    """Split attention: the sum of two groups scales the groups."""

    def body(emit: Emit, x: Any) -> Any:
        wide = emit(R.reshape(emit(R.astype(x, "float32")), [2, 9, 2, 8]))
        wide = emit(R.permute_dims(wide, [0, 2, 1, 3]))
        scaled = emit(R.multiply(wide, emit(R.sum(wide, [1, 2], keepdims=True))))
        return R.astype(emit(R.reshape(scaled, [2, 18, 8])), "float16")

    check_moves_of_halves(body, ((2, 9, 16), "float16"))


@pytest.mark.parametrize("why", ["read again", "a result", "wider"])
def test_other_casts_stay(why: str) -> None:
    def body(emit: Emit, x: Any) -> Any:
        y = windows(emit, x)
        cast = emit(R.astype(y, "float64" if why == "wider" else "float16"))
        return {"read again": [cast, emit(R.exp(y))], "a result": [cast, y], "wider": cast}[why]

    before = build(body, ((2, 6, 6, 8), "float32"))
    tvm.ir.assert_structural_equal(NarrowMoves()(before), before)


@pytest.mark.parametrize("shared", [True, False])
def test_what_products_and_others_read_is_widened_once(shared: bool) -> None:
    """A product reads a transposed operand, and an exponential needs the wide elements in any case."""

    def body(emit: Emit, x: Any, y: Any) -> list[Any]:
        wide = emit(R.astype(y, "float32"))
        product = R.matmul(x, emit(R.permute_dims(wide, [0, 2, 1])))
        return [product, *([R.exp(wide)] if shared else [])]

    before = build(body, ((2, 5, 8), "float32"), ((2, 6, 8), "float16"))
    tvm.ir.assert_structural_equal(NarrowMoves()(before), before)
