# SPDX-License-Identifier: Apache-2.0
"""MendImports: rewrite calls from importers that TVM does not compile, or computes wrongly.

``MENDED`` holds a function for each operator, whose docstring says what it mends. Clips, leaky ReLUs and top-1 calls
compile, but TVM's change of layouts stops at the first two, and the third sorts.

Fault: TVM refuses clips of integers with an infinite bound, tensors of infinities, running sums of booleans, and the
    slices and splits that are mended here. With a negative constant index, ``take`` reads in front of the tensor.
Seen in: TVM 0.27.0
Input: ``R.clip(x, 0, inf)`` of int64, target llvm
Upstream: https://github.com/apache/tvm/issues/20297
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from ... import compat
from ...graph.extent import is_static
from ...relax.rewriting.calls import with_calls
from ...relax.rewriting.functions import with_own_functions, with_result_inferred
from ...relax.rewriting.operators import operator_name
from ...relax.rewriting.views import has_elements, integers_of, shape_of
from ...support.module_pass import module_pass
from ..imports import unlegalized
from . import adaptive_pools, boolean_arithmetic


def _clip(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a clip as a maximum and a minimum, without bounds that are infinite.

    TVM does not legalize a clip of integers with an infinite bound, and ``clamp(min=0)`` is imported as one. Clips of
    other dtypes gain too: TVM's change of layouts stops at a clip, but not at a maximum.
    """
    x, *bounds = call.args
    dtype = str(call.ty.dtype)
    values = [getattr(bound, "value", None) for bound in bounds]
    if not all(isinstance(v, (int, float)) and _is_exact(v, dtype) for v in values):
        return call
    for value, combine, none in zip(values, (relax.op.maximum, relax.op.minimum), (-math.inf, math.inf)):
        if value != none:
            x = builder.emit(combine(x, relax.const(value, dtype)))
    return x


def _is_exact(value: float, dtype: str) -> bool:
    """Return True for a bound that is infinite, or that its dtype holds. A float only has to be in range."""
    if math.isnan(value):
        return False
    if "float" in dtype:
        return math.isinf(value) or abs(value) <= float(ml_dtypes.finfo(dtype).max)
    if dtype == "bool":
        return False
    held = np.iinfo(dtype)
    return math.isinf(value) or (value == int(value) and held.min <= value <= held.max)


def _full(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a tensor of one infinite or NaN value as a broadcast.

    TVM's legalization raises for such a value.
    """
    shape, value = call.args
    if not isinstance(value, tvm.ir.GenericConst) or not isinstance(shape, relax.ShapeExpr):
        return call
    dtype = str(call.ty.dtype)
    number = value.value.numpy()
    if "float" not in str(value.ty.dtype) or "float" not in dtype:
        return call
    if np.isfinite(number.astype("float64")).all():
        return call
    return relax.op.broadcast_to(relax.const(number.astype("float64").astype(dtype), dtype), shape)


def _count(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a running sum of booleans as one of int64, as PyTorch defines it. TVM's importer keeps them boolean.

    LLVM refuses to add booleans, and TVM's kernel for a GPU reads them out of alignment.
    """
    (x,) = call.args
    if str(x.ty.dtype) != "bool" or call.attrs.dtype is not None and str(call.ty.dtype) != "bool":
        return call
    scan = relax.op.cumsum if operator_name(call) == "relax.cumsum" else relax.op.cumprod
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return scan(relax.op.astype(x, "int64"), axis, "int64", bool(call.attrs.exclusive))


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the greatest or least element with its index by reductions.

    ``max(dim)`` is imported as a top-1, which sorts.
    """
    (x,) = call.args
    shape, attrs = shape_of(x), call.attrs
    if int(attrs.k) != 1 or shape is None or not shape:
        return call
    axis = int(attrs.axis) % len(shape)
    if not is_static(shape[axis : axis + 1]) or shape[axis] == 0:
        return call
    which = str(attrs.ret_type)
    of_booleans = str(x.ty.dtype) == "bool"
    if of_booleans:
        x = builder.emit(relax.op.astype(x, "int8"))
    results = []
    if which in ("both", "values"):
        extreme = relax.op.max if attrs.largest else relax.op.min
        value = extreme(x, axis, True)
        results.append(relax.op.astype(builder.emit(value), "bool") if of_booleans else value)
    if which in ("both", "indices"):
        position = relax.op.argmax if attrs.largest else relax.op.argmin
        index = builder.emit(position(x, axis, True))
        dtype = str(attrs.dtype) if attrs.dtype is not None else "int32"
        results.append(index if str(index.ty.dtype) == dtype else relax.op.astype(index, dtype))
    return relax.Tuple([builder.emit(each) for each in results]) if which == "both" else results[0]


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a take at constant indices with negative indices replaced by the positions that they mean.

    TVM's take reads in front of the tensor. ``x[:, -1]`` is imported so, in the mode that does not check indices.
    """
    x, indices = call.args
    checked = call.attrs.axis is None or str(call.attrs.mode) != "fast"
    if checked or not isinstance(indices, tvm.ir.GenericConst):
        return call
    shape, positions = shape_of(x), indices.value.numpy()
    if not shape or positions.dtype.kind != "i" or not (positions < 0).any():
        return call
    axis = int(call.attrs.axis) % len(shape)
    extent = shape[axis]
    if isinstance(extent, int):
        counted = relax.const(
            np.where(positions < 0, positions + extent, positions).astype(positions.dtype),
            str(indices.ty.dtype),
        )
        return relax.op.take(x, counted, axis, "fast")
    if positions.ndim:
        return call
    first = extent + int(positions)
    part = builder.emit(relax.op.strided_slice(x, [axis], [first], [first + 1], assume_inbound=True))
    return relax.op.squeeze(part, [axis])


def _slice(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a slice with its axes counted from the front, and from 0 to 0 along axes where nothing is left.

    TVM legalizes no other slice of a tensor with a symbolic extent. PyTorch's ``diff`` is imported so, and
    transformers find the beginnings of sequences with it. A slice that ends before it begins has a negative extent
    in TVM, and no legalization.
    """
    x, axes, *cuts = call.args
    shape, positions = shape_of(x), integers_of(axes)
    if shape is None or positions is None:
        return call
    counted, inbound = [position % len(shape) for position in positions], bool(call.attrs.assume_inbound)
    bounds = [list(getattr(cut, "fields", None) or getattr(cut, "values", None) or ()) for cut in cuts]
    if not inbound and all(len(part) == len(counted) for part in bounds):
        steps = bounds[2] if len(bounds) > 2 else [compat.const(1, "int64")] * len(counted)
        given = list(zip(bounds[0], bounds[1], steps))
        empty = [_is_nothing(shape[axis], *cut) for axis, cut in zip(counted, given)]
        kept = [_NOTHING if nothing else cut for nothing, cut in zip(empty, given)]
        if any(empty):
            return relax.op.strided_slice(x, counted, *map(list, zip(*kept)))
    if counted == positions:
        return call
    return relax.op.strided_slice(x, counted, *cuts, assume_inbound=inbound)


_NOTHING = tuple(compat.const(number, "int64") for number in (0, 0, 1))
"""Begin, end and step of a slice without elements."""


def _is_nothing(extent: Any, begin: Any, end: Any, step: Any) -> bool:
    """Return True for a slice along an axis that has no elements, whatever values the symbols of the extent have."""
    first, last, by = (compat.int_value(each) for each in (begin, end, step))
    if first is None or last is None or not by:
        return False
    if isinstance(extent, int):
        return not range(*slice(first, last, by).indices(extent)) and not (by < 0 and last < -extent)
    return by > 0 and last <= first and (first < 0) == (last < 0)


def _split(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a split into one part as its operand, and parts without elements as slices.

    TVM gives a split into one part the type of a tensor. Its legalization raises for positions that repeat or fall.
    """
    x = call.args[0]
    if not isinstance(call.ty, relax.TupleType):
        return x
    cuts, shape = call.attrs.indices_or_sections, shape_of(x)
    if isinstance(cuts, tvm.tirx.IntImm) or shape is None:
        return call
    axis, positions = int(call.attrs.axis) % len(shape), [0, *map(int, cuts)]
    if all(first < last for first, last in pairwise(positions)):
        return call
    ends = [*positions[1:], shape[axis]]
    slices = (relax.op.strided_slice(x, [axis], [first], [last]) for first, last in zip(positions, ends))
    return relax.Tuple([builder.emit(_slice(builder, part)) for part in slices])


def _concat(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return a concatenation without operands that have no elements.

    Rotary embeddings of whole heads have them: the rest of a head of 64 numbers is ``x[..., 64:]``. Such an operand
    is no input of a stitched kernel, and TVM's schedules for a GPU divide by its extents.
    """
    (parts,) = call.args
    if not isinstance(parts, relax.Tuple):
        return call
    some = [part for part in parts.fields if has_elements(part)]
    if len(some) in (0, len(parts.fields)):
        return call
    return some[0] if len(some) == 1 else relax.op.concat(some, call.attrs.axis)


def _leaky_relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the maximum of an element and its multiple, or the minimum for a factor above 1.

    TVM's change of layouts stops at a leaky ReLU, but not at a maximum.
    """
    (x,), alpha = call.args, float(call.attrs.alpha)
    if alpha == 0.0:
        return relax.op.nn.relu(x)  # an infinity times zero is NaN
    combine = relax.op.maximum if alpha <= 1.0 else relax.op.minimum
    return combine(x, builder.emit(relax.op.multiply(x, relax.const(alpha, str(x.ty.dtype)))))


MENDED: dict[str, Callable[[Any, Any], Any]] = {
    **adaptive_pools.MENDED,
    **boolean_arithmetic.MENDED,
    **unlegalized.MENDED,
    "relax.clip": _clip,
    "relax.concat": _concat,
    "relax.full": _full,
    "relax.cumsum": _count,
    "relax.cumprod": _count,
    "relax.topk": _topk,
    "relax.take": _take,
    "relax.split": _split,
    "relax.strided_slice": _slice,
    "relax.nn.leakyrelu": _leaky_relu,
}
"""By operator, the function that rewrites a call so that TVM compiles it, or returns the call as it is."""


def _may_be_mended(call: relax.Call) -> bool:
    """Return whether a call may change. Most operators that are mended for booleans have no boolean operands."""
    return operator_name(call) not in boolean_arithmetic.MENDED or boolean_arithmetic.is_of_booleans(call)


@module_pass
class MendImports:
    """Rewrite the calls that ``MENDED`` knows. Runs before all other passes. Types that change are inferred again."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        retyped = False

        def mended(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            nonlocal retyped
            name = operator_name(call)
            rewritten_module = MENDED[name](builder, call)
            retyped |= name in ("relax.cumsum", "relax.cumprod") and rewritten_module is not call
            return rewritten_module

        rewritten_module = with_calls(
            mod,
            MENDED,
            mended,
            why="TVM fails on the imported call, errs, or keeps its layout",
            when=_may_be_mended,
        )
        return with_own_functions(rewritten_module, with_result_inferred) if retyped else rewritten_module
