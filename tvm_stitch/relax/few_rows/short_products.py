# SPDX-License-Identifier: Apache-2.0
"""ShortProducts: products by a small matrix, which add up few terms for each of few columns, become element-wise.

Attention whose heads are mixed multiplies the scores of all heads by a matrix of heads by heads. Each score is read
for a handful of multiplications, so the product waits for memory. As an element-wise operator it is computed in the
kernel of the softmax behind it, and the transpositions around it move no bytes.

If vectors are a transposition, the products are computed before it. So what one kernel hands to the next one has the
order of the scores, and both read and write neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import tvm
from tvm import relax, te, tirx

from ... import compat
from ...cost.choices import Choices
from ...graph.dtype import FLOATS, compute_dtype
from ...graph.extent import product
from ...support.module_pass import module_pass
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import permutation, shape_of

MATMUL, RESHAPE, CAST = "relax.matmul", "relax.reshape", "relax.astype"


@module_pass
class ShortProducts:
    """Write matmuls of many vectors by one small matrix as element-wise operators.

    Runs before matmuls become library calls. Products of integers stay as they are, and so do those of few vectors.

    On CPUs only products in float32 by a matrix on the right are rewritten. Kernels of matmuls are faster for others.

    Args:
        choices: the device's constants of choice.
        is_gpu: whether the device is a GPU.
    """

    def __init__(self, choices: Choices, is_gpu: bool):
        self.choices, self.is_gpu = choices, is_gpu

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return apply_rules(
            mod, [Rule("few terms of many sums wait for memory", self._element_wise, (MATMUL,))]
        )

    def _element_wise(self, match: Match) -> relax.Expr | None:
        operands, dtype, choices = match.value.args, str(match.before.ty.dtype), self.choices
        shapes, results = [shape_of(each) for each in operands], shape_of(match.before)
        if dtype not in (FLOATS if self.is_gpu else ("float32",)) or results is None:
            return None
        of_left, of_right = shapes
        if of_left is None or of_right is None or min(len(of_left), len(of_right)) < 2:
            return None
        most = choices.gpu_short_product if self.is_gpu else choices.cpu_short_product
        for small, along in ((1, -1), (0, -2))[: 2 if self.is_gpu else 1]:
            if not _is_small((of_left, of_right)[small][-2:], most):
                continue
            if _vectors(results, along) < choices.short_product_vectors:
                continue
            matrix, vectors = operands[small], operands[1 - small]
            if len((of_right, of_left)[small]) == len(results) and _same_lead(vectors, match.before):
                matrix = _one_of_equal(matrix)
            if len(shape_of(matrix) or ()) == 2:
                return _by_one_matrix(match, vectors, matrix, small, dtype)
            terms = partial(multiplied, lead=list(match.before.ty.shape.values)[:-2], dtype=dtype)
            return match.builder.call_te(terms, *operands, primfunc_name_hint="short_product")
        return None


def _by_one_matrix(
    match: Match, vectors: relax.Expr, matrix: relax.Expr, small: int, dtype: str
) -> relax.Expr:
    """Return the product by one matrix, computed where vectors lie before they are transposed and reshaped."""
    axis, axes = len(vectors.ty.shape) - 2 + small, None
    if small == 1 and (moved := _before_moves(match, vectors)) is not None:
        vectors, axes = moved
        axis = axes[-1]
    terms = partial(mixed, axis=axis, small=small, dtype=dtype)
    product = match.builder.call_te(terms, vectors, matrix, primfunc_name_hint="short_product")
    if axes is None:
        return product
    return relax.op.reshape(
        match.emit(relax.op.permute_dims(match.emit(product), axes)), match.before.ty.shape
    )


def _before_moves(match: Match, vectors: relax.Expr) -> tuple[relax.Expr, list[int]] | None:
    """Return what vectors along the last axis are a transposition of, and its axes, or None.

    Between the transposition and the vectors, there may be reshapes that keep the last axis, and casts.
    """
    casts: list[str] = []
    while (call := match.definition(vectors)) is not None and operator_name(call) in (RESHAPE, CAST):
        if operator_name(call) == CAST:
            casts.append(str(call.ty.dtype))
        elif not _same_last(call.args[0], vectors):
            return None
        vectors = call.args[0]
    rank = len(shape_of(vectors) or ())
    if call is None or operator_name(call) != PERMUTE or not rank:
        return None
    source = call.args[0]
    for dtype in reversed(casts):
        source = match.emit(relax.op.astype(source, dtype))
    return source, permutation(call, rank)


def _same_last(a: relax.Expr, b: relax.Expr) -> bool:
    """Return whether the last axes of two values are certainly as long."""
    of_a, of_b = shape_of(a), shape_of(b)
    if not of_a or not of_b:
        return False
    first, second = compat.int_value(of_a[-1]), compat.int_value(of_b[-1])
    return first is not None and first == second


def _same_lead(vectors: relax.Expr, result: relax.Expr) -> bool:
    """Return whether two values of the same rank have equal extents in front of the last two."""
    pairs = zip(list(vectors.ty.shape.values)[:-2], list(result.ty.shape.values)[:-2])
    return all(compat.structural_equal(a, b) for a, b in pairs)


def _one_of_equal(operand: relax.Expr) -> relax.Expr:
    """Return the one matrix that a constant repeats, as importers write it for batches. Others stay as they are."""
    if not isinstance(operand, tvm.ir.GenericConst) or len(shape_of(operand) or ()) < 3:
        return operand
    matrices = operand.value.numpy()
    first = matrices[(0,) * (matrices.ndim - 2)]
    return relax.const(first, str(operand.ty.dtype)) if (matrices == first).all() else operand


def _is_small(matrix: Sequence[Any], most: int) -> bool:
    extents = [compat.int_value(extent) for extent in matrix]
    return all(extent is not None and 0 < extent <= most for extent in extents)


def _vectors(shape: Sequence[Any], along: int) -> int:
    """Return how many vectors along an axis a tensor has at least."""
    extents = [compat.int_value(extent) for extent in shape]
    extents[along] = 1
    return product(1 if extent is None else extent for extent in extents)


def mixed(vectors: te.Tensor, matrix: te.Tensor, axis: int, small: int, dtype: str) -> te.Tensor:
    """Return the products of the vectors along an axis by a matrix, with one expression of all terms for each result.

    Args:
        vectors: with the terms along ``axis``.
        matrix: of terms by results, or of results by terms if ``small`` is 0.
        axis: of the vectors.
        small: whether the matrix is the product's left side (0) or its right side (1).
        dtype: of the result. Sums of half types are taken in float32.

    Returns:
        A tensor that has the results along ``axis``.
    """
    depth, count = (int(matrix.shape[i]) for i in ((0, 1) if small else (1, 0)))
    shape = [count if a == axis else extent for a, extent in enumerate(vectors.shape)]

    def total(*index: Any) -> Any:
        terms = []
        for k in range(depth):
            number, of = tirx.const(k, "int64"), index[axis]
            place = [number if a == axis else i for a, i in enumerate(index)]
            weight = matrix(number, of) if small else matrix(of, number)
            terms.append((vectors(*place), weight))
        return _added_products(terms, dtype)

    return te.compute(shape, total, name="short_product")


def multiplied(left: te.Tensor, right: te.Tensor, lead: Sequence[Any], dtype: str) -> te.Tensor:
    """Return the product of two tensors, with one expression of all terms for each result.

    Args:
        left: of the shape <..., M, K>, with K known when compiled.
        right: of the shape <..., K, N>.
        lead: the result's extents in front of the last two, to which those of the operands are broadcast.
        dtype: of the result. Sums of half types are taken in float32.

    Returns:
        A tensor of the shape <..., M, N>.
    """
    depths = [compat.int_value(extent) for extent in (left.shape[-1], right.shape[-2])]
    depth = next(extent for extent in depths if extent is not None)

    def of_operand(operand: te.Tensor, outer: Sequence[Any]) -> list[Any]:
        own = operand.shape[:-2]
        kept = outer[len(outer) - len(own) :]
        return [
            tirx.const(0, "int64") if compat.int_value(extent) == 1 else at for extent, at in zip(own, kept)
        ]

    def total(*index: Any) -> Any:
        *outer, row, column = index
        terms = []
        for k in range(depth):
            number = tirx.const(k, "int64")
            a = left(*of_operand(left, outer), row, number)
            b = right(*of_operand(right, outer), number, column)
            terms.append((a, b))
        return _added_products(terms, dtype)

    return te.compute([*lead, left.shape[-2], right.shape[-1]], total, name="short_product")


def _added_products(factors: Sequence[tuple[Any, Any]], dtype: str) -> Any:
    """Return the sum of products of two factors each, which is taken in float32 for half types."""
    wide = compute_dtype(dtype)
    return reduce(lambda a, b: a + b, (a.astype(wide) * b.astype(wide) for a, b in factors)).astype(dtype)
