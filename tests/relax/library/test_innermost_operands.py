# SPDX-License-Identifier: Apache-2.0
"""Operands of products that are permuted in memory keep their innermost axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.relax.library.innermost_operands import with_innermost_axes_kept

F32 = "float32"


def left_to_keys(emit: Any, x: Any, k: Any, turned: Callable[[Any, Any], Any]) -> Any:
    """Scores of 48 heads: the keys' ``[4, 128, 12, 32]`` are read as ``[48, 32, 128]``."""
    return emit(R.matmul(x, emit(R.reshape(turned(emit, k), (48, 32, 128)))))


def at_once(emit: Any, k: Any) -> Any:
    return emit(R.permute_dims(k, [0, 2, 3, 1]))


def in_two(emit: Any, k: Any) -> Any:
    return emit(R.permute_dims(emit(R.permute_dims(k, [0, 2, 1, 3])), [0, 1, 3, 2]))


SPECS = ((48, 128, 32), F32), ((4, 128, 12, 32), F32)


def test_keys_of_heads() -> None:
    before = build(lambda emit, x, k: left_to_keys(emit, x, k, at_once), *SPECS)
    wanted = build(lambda emit, x, k: left_to_keys(emit, x, k, in_two), *SPECS)
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(before), wanted)


def test_left_side_of_symbolic_size() -> None:
    n = symbol("n")

    def body(emit: Any, x: Any, w: Any, order: list[list[int]]) -> Any:
        for axes in order:
            x = emit(R.permute_dims(x, axes))
        return emit(R.matmul(x, w))

    specs = ((n, 7, 5, 3), F32), ((5, 1, 7, 2), F32)
    before = build(lambda emit, x, w: body(emit, x, w, [[2, 0, 3, 1]]), *specs)
    wanted = build(lambda emit, x, w: body(emit, x, w, [[2, 0, 1, 3], [0, 1, 3, 2]]), *specs)
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(before), wanted)


def test_rows_of_a_weight_stay_together() -> None:
    """An image with channels second is multiplied by one matrix. Its lines would be matrices of three rows each."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(R.matmul(emit(R.permute_dims(x, [0, 2, 3, 1])), w))

    mod = build(body, ((2, 7, 5, 3), F32), ((7, 2), F32))
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(mod), mod)


def read_twice(emit: Any, x: Any, k: Any) -> Any:
    turned = at_once(emit, k)
    return [left_to_keys(emit, x, k, lambda *_: turned), emit(R.exp(turned))]


def matrices_only(emit: Any, _x: Any, k: Any) -> Any:
    """Let the product read the stored tensor, transposed."""
    return emit(R.matmul(k, emit(R.permute_dims(k, [0, 1, 3, 2]))))


def innermost_kept(emit: Any, x: Any, k: Any) -> Any:
    turned = emit(R.reshape(emit(R.permute_dims(k, [0, 2, 1, 3])), (48, 128, 32)))
    return emit(R.matmul(emit(R.permute_dims(x, [0, 2, 1])), turned))


def innermost_outside(emit: Any, x: Any, k: Any) -> Any:
    """Turn the axis into a batch: no side of a matrix."""
    return emit(R.matmul(emit(R.permute_dims(k, [3, 0, 2, 1])), emit(R.permute_dims(k, [3, 0, 1, 2]))))


@pytest.mark.parametrize("body", [read_twice, matrices_only, innermost_kept, innermost_outside])
def test_others_stay(body: Callable[..., Any]) -> None:
    mod = build(body, *SPECS)
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(mod), mod)


def test_views_that_change_the_matrices() -> None:
    mod = build(
        lambda emit, x, k: emit(R.matmul(x, emit(R.reshape(at_once(emit, k), (48, 16, 256))))),
        ((48, 3, 16), F32),
        ((4, 128, 12, 32), F32),
    )
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(mod), mod)


def test_an_operand_of_match_cast() -> None:
    """The tensor that it is cast from is not seen."""
    builder = relax.BlockBuilder()
    x, y = (
        relax.Var(name, relax.TensorType(shape, F32)) for name, shape in (("x", (2, 4, 8)), ("y", (2, 8, 5)))
    )
    with builder.function("main", [x, y]):
        with builder.dataflow():
            cast = builder.match_cast(builder.emit(R.exp(y)), relax.TensorType((2, 8, 5), F32))
            out = builder.emit_output(R.matmul(x, cast))
        builder.emit_func_output(out)
    mod = builder.get()
    tvm.ir.assert_structural_equal(with_innermost_axes_kept(mod), mod)
