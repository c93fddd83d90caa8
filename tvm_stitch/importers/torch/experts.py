# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch for mixtures of experts: counts of equal numbers, products of groups of rows.

The rows of an expert are known only when the model runs. With few rows, each row reads its expert's weight. With
many rows, each expert multiplies all rows, and each row keeps the product of its expert. That is more arithmetic,
but done by matmul kernels.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from .core import Converter, argument


def expert_converters() -> dict[str, Converter]:
    """Return the converters for experts, by the names of PyTorch's and transformers' operators."""
    return {
        "histc.default": _histogram,
        "_grouped_mm.default": _grouped_product,
        "transformers::grouped_mm_fallback.default": _grouped_product,
    }


def _histogram(node: Any, importer: Any) -> Any:
    """(input, bins, min, max) -> the number of elements in each of ``bins`` equal intervals.

    The greatest number lies in the last interval. Numbers outside of the bounds count in none.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    bins = int(argument(node, 1, "bins", 100))
    low, high = (float(argument(node, at, name, 0)) for at, name in ((2, "min"), (3, "max")))
    if not low < high:
        raise NotImplementedError(
            f"torch.histc without bounds (min {low:g}, max {high:g}): give those of the data, min below max"
        )
    dtype = str(x.ty.dtype.dtype)
    of = dtype if "float" in dtype else "float64"  # integers up to 2^53 are exact
    x = emit(R.reshape(emit(R.astype(x, of)), relax.ShapeExpr([1, -1])))
    bin_of = emit(R.multiply(emit(R.subtract(x, relax.const(low, of))), relax.const(bins / (high - low), of)))
    last = emit(R.equal(x, relax.const(high, of)))
    bin_of = emit(R.where(last, relax.const(bins - 1, of), emit(R.floor(bin_of))))
    inside = emit(R.less_equal(x, relax.const(high, of)))
    numbers = emit(R.reshape(emit(R.arange(0, bins, 1, of)), relax.ShapeExpr([bins, 1])))
    equal = emit(R.logical_and(emit(R.equal(bin_of, numbers)), inside))
    return emit(R.sum(emit(R.astype(equal, dtype)), axis=[1]))


def _grouped_product(node: Any, importer: Any) -> Any:
    """(rows <S,K>, weights <E,K,N>, ends of each expert's rows <E>) -> each row times its expert's weight <S,N>.

    Rows behind the last end are 0.
    """
    emit = importer.block_builder.emit
    rows, weights = importer.env[node.args[0]], importer.env[node.args[1]]
    ends, bias = (importer.env.get(argument(node, at, name, None)) for at, name in ((2, "offs"), (3, "bias")))
    if ends is None or bias is not None or rows.ty.ndim != 2 or weights.ty.ndim != 3:
        raise NotImplementedError(
            "torch.nn.functional.grouped_mm of other than rows <S,K>, weights <E,K,N> and offs <E>, without a bias"
        )
    count, experts = rows.ty.shape.values[0], int(weights.ty.shape.values[0])
    number = emit(R.reshape(emit(R.arange(0, count, 1, "int64")), relax.ShapeExpr([count, 1])))
    ends = emit(R.reshape(emit(R.astype(ends, "int64")), relax.ShapeExpr([1, experts])))
    before = emit(R.astype(emit(R.greater_equal(number, ends)), "int64"))
    own = emit(R.sum(before, axis=[1]))  # the number of the row's expert is the number of ends before the row
    few = int_value(count)
    if few is not None and few <= experts:
        known = emit(R.minimum(own, relax.const(experts - 1, "int64")))
        chosen = emit(R.take(weights, known, axis=0))
        products = emit(R.matmul(emit(R.expand_dims(rows, 1)), chosen))
        inside = emit(
            R.reshape(emit(R.less(own, relax.const(experts, "int64"))), relax.ShapeExpr([count, 1]))
        )
        row_products = emit(R.squeeze(products, axis=[1]))
        return emit(R.where(inside, row_products, relax.const(0, str(rows.ty.dtype.dtype))))
    products = emit(R.matmul(emit(R.expand_dims(rows, 0)), weights))
    expert = emit(R.reshape(emit(R.arange(0, experts, 1, "int64")), relax.ShapeExpr([experts, 1, 1])))
    mine = emit(R.equal(expert, emit(R.reshape(own, relax.ShapeExpr([1, count, 1])))))
    zero = relax.const(0, str(rows.ty.dtype.dtype))
    return emit(R.sum(emit(R.where(mine, products, zero)), axis=[0]))
