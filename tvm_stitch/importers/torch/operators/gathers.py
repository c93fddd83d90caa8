# SPDX-License-Identifier: Apache-2.0
"""PyTorch's reads at computed indices, sorts and searches.

TVM's importer reads in front of a tensor at negative indices. Here they count from the end, also for operators that
PyTorch lets fail.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op as R

from ....compute.selection.ordered import NARROW
from ....compute.selection.selection import MOST
from ..core import Converter, argument
from .values import HALVES, cast, full, has_no_elements, known_shape, naturals, type_name


def gather_converters() -> dict[str, Converter]:
    """Return the converters of reads, sorts and searches, by the names of PyTorch's operators."""
    return {
        "argsort.default": partial(_argsort, 1),
        "argsort.stable": partial(_argsort, 1),
        "bucketize.Tensor": _bucketize,
        "embedding.default": _embedding,
        "gather.default": _gather,
        "index_select.default": _index_select,
        "isin.Tensor_Tensor": _isin,
        "masked_select.default": _masked_select,
        "nonzero.default": _nonzero,
        "sort.default": partial(_sort, 1),
        "sort.stable": partial(_sort, 1),
        "take.default": _take,
        "topk.default": _topk,
    }


def _embedding(node: Any, importer: Any) -> Any:
    """(table, indices, ...)."""
    table, index = (importer.env[arg] for arg in node.args[:2])
    return importer.block_builder.emit(R.take(table, naturals(index, table.ty.shape[0], importer), 0))


def _take(node: Any, importer: Any) -> Any:
    """(input, indices): elements of the flattened input."""
    x, index = (importer.env[arg] for arg in node.args[:2])
    flat = importer.block_builder.emit(R.reshape(x, [-1]))
    return importer.block_builder.emit(R.take(flat, naturals(index, flat.ty.shape[0], importer), 0))


def _index_select(node: Any, importer: Any) -> Any:
    """(input, axis, indices)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    index = importer.env[node.args[2]]
    if not x.ty.shape:
        return x
    axis = int(node.args[1]) % len(x.ty.shape)
    index = naturals(index, x.ty.shape[axis], importer)
    if not index.ty.shape:
        index = emit(R.reshape(index, [1]))
    return emit(R.take(x, index, axis))


def _gather(node: Any, importer: Any) -> Any:
    """(input, axis, indices, ...) -> along the axis the elements at the indices."""
    x, index, emit = importer.env[node.args[0]], importer.env[node.args[2]], importer.block_builder.emit
    shape = known_shape(node)
    if shape is not None and 0 in shape:
        return full(shape, 0, type_name(x), importer)
    if not x.ty.shape:
        return emit(R.broadcast_to(x, list(index.ty.shape)))
    if not index.ty.shape:
        flat = emit(R.reshape(naturals(index, x.ty.shape[0], importer), [1]))
        return emit(R.squeeze(emit(R.take(x, flat, 0)), [0]))
    axis = int(node.args[1]) % len(x.ty.shape)
    return emit(R.gather_elements(x, naturals(index, x.ty.shape[axis], importer), axis=axis))


def _masked_select(node: Any, importer: Any) -> Any:
    """(input, mask) -> the elements where the mask is true. Both are broadcast."""
    x, mask = (importer.env[arg] for arg in node.args[:2])
    emit = importer.block_builder.emit
    both = emit(R.where(mask, x, x))
    mask = emit(R.broadcast_to(mask, list(both.ty.shape)))
    rows = nonzero(node, emit(R.reshape(mask, [-1])), importer)
    index = emit(R.reshape(rows, [rows.ty.shape[1]]))
    return emit(R.take(emit(R.reshape(both, [-1])), index, 0, mode="fast"))


def nonzero(node: Any, x: Any, importer: Any) -> Any:
    """Return the positions of elements that are not zero: one row for each axis, one column for each element."""
    value = node.meta["val"]
    size = value.shape[0] if len(value.shape) else None
    if isinstance(size, int):
        count: Any = tirx.Var(f"{node.name}_count", "int64")
    else:
        count = tirx.Var(str(size) if size is not None else f"{node.name}_count", "int64")
    rows = importer.block_builder.emit(R.nonzero(cast(x, "bool", importer)))
    return importer.block_builder.match_cast(rows, relax.TensorType([len(x.ty.shape), count], "int64"))


def _nonzero(node: Any, importer: Any) -> Any:
    """(input) -> the positions of elements that are not zero, one row for each."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    if not x.ty.shape:  # a tensor of no axis has one row without positions, or none
        rows = nonzero(node, emit(R.reshape(x, [1])), importer)
        return emit(R.full([rows.ty.shape[1], 0], relax.const(0, "int64"), "int64"))
    return importer.block_builder.emit(R.permute_dims(nonzero(node, x, importer), [1, 0]))


_INFINITY = {"int32": 0x7F800000, "int64": 0x7FF0000000000000}
"""The bits of infinity. Those of NaN are greater."""


def _sort_key(x: Any, importer: Any) -> Any:
    """Return integers in the order of a tensor's elements, of a type that TVM sorts.

    PyTorch sorts NaN behind all numbers, and both zeros are equal. TVM compares floats, which gives NaN no position:
    the numbers around it come out in any order. The bits of positive floats are in their order, and those of negative
    ones in the reverse order.
    """
    dtype = type_name(x)
    if dtype in HALVES:
        x, dtype = cast(x, "float32", importer), "float32"
    if dtype in ("bool", "int8", "int16", "uint8"):
        return cast(x, "int32", importer)
    if dtype not in ("float32", "float64"):
        return x
    bits = f"int{dtype[5:]}"
    last, infinity = tirx.max_value(bits), tirx.const(_INFINITY[bits], bits)

    def key(floats: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            word = tirx.reinterpret(bits, floats(*at))
            size = word & last
            ordered = tirx.Select(word < 0, tirx.const(0, bits) - size, size)
            return tirx.Select(size > infinity, last, ordered)  # TVM takes x != x for false

        return te.compute(floats.shape, element, name="sort_key")

    return importer.block_builder.emit_te(key, x)


def _options(node: Any, at: int) -> tuple[int, bool]:
    """Return the axis of a sort, and whether it is descending. Overloads differ in the order of these."""
    if node.target.__name__.endswith(".stable"):
        return int(node.kwargs.get("dim", -1)), bool(node.kwargs.get("descending", False))
    return int(argument(node, at, "dim", -1)), bool(argument(node, at + 1, "descending", False))


def _argsort(at: int, node: Any, importer: Any) -> Any:
    """(input, axis=-1, descending=False)."""
    return _order(importer.env[node.args[0]], *_options(node, at), importer)


def _order(x: Any, axis: int, descending: bool, importer: Any) -> Any:
    if not x.ty.shape or has_no_elements(x):
        return full(list(x.ty.shape), 0, "int64", importer)
    axis %= len(x.ty.shape)
    return importer.block_builder.emit(R.argsort(_sort_key(x, importer), axis, descending, dtype="int64"))


def _sort(at: int, node: Any, importer: Any) -> Any:
    """(input, axis=-1, descending=False) -> (sorted values, their indices). Equal values keep their order."""
    x = importer.env[node.args[0]]
    axis, descending = _options(node, at)
    order = _order(x, axis, descending, importer)
    if not x.ty.shape or has_no_elements(x):
        return relax.Tuple([x, order])
    values = importer.block_builder.emit(R.gather_elements(x, order, axis=axis % len(x.ty.shape)))
    return relax.Tuple([values, order])


def _topk(node: Any, importer: Any) -> Any:
    """(input, count, axis=-1, largest=True, sorted=True): always sorted, because PyTorch leaves the order open
    otherwise.
    """
    x, count = importer.env[node.args[0]], argument(node, 1, "k", 1)
    axis, largest = int(argument(node, 2, "dim", -1)), bool(argument(node, 3, "largest", True))
    emit = importer.block_builder.emit
    if not x.ty.shape:
        return relax.Tuple([x, full([], 0, "int64", importer)])
    shape = list(node.meta["val"][0].shape)
    if 0 in [each for each in shape if type(each) is int]:
        return relax.Tuple([full(shape, 0, type_name(x), importer), full(shape, 0, "int64", importer)])
    axis %= len(x.ty.shape)
    if int(count) <= MOST and type_name(x) in NARROW:
        both = emit(R.topk(x, count, axis, "both", largest, "int64"))
        return relax.Tuple([emit(relax.TupleGetItem(both, i)) for i in range(2)])
    order = emit(R.topk(_sort_key(x, importer), count, axis, "indices", largest, "int64"))
    return relax.Tuple([emit(R.gather_elements(x, order, axis=axis)), order])


def _bucketize(node: Any, importer: Any) -> Any:
    """(input, boundaries, out_int32=False, right=False)."""
    x, boundaries = (importer.env[arg] for arg in node.args[:2])
    narrow, right = (bool(argument(node, at, name, False)) for at, name in ((2, "out_int32"), (3, "right")))
    if has_no_elements(boundaries) or has_no_elements(x):
        return full(list(x.ty.shape), 0, "int32" if narrow else "int64", importer)
    if type_name(x) != type_name(boundaries):
        common = "float32" if "float" in type_name(x) + type_name(boundaries) else "int64"
        x, boundaries = cast(x, common, importer), cast(boundaries, common, importer)
    emit = importer.block_builder.emit
    flat = x if x.ty.shape else emit(R.reshape(x, [1]))
    found = emit(R.bucketize(flat, boundaries, narrow, right))
    return found if x.ty.shape else emit(R.squeeze(found, [0]))


def _isin(node: Any, importer: Any) -> Any:
    """(elements, test elements, assume_unique=False, invert=False)."""
    x, others, emit = *(importer.env[arg] for arg in node.args[:2]), importer.block_builder.emit
    inverted = bool(node.kwargs.get("invert", False))
    if has_no_elements(others):
        return full(list(x.ty.shape), inverted, "bool", importer)
    rank = len(x.ty.shape)
    spread = emit(R.expand_dims(x, rank))
    equal = emit(R.equal(spread, emit(R.reshape(others, [-1]))))
    found = cast(emit(R.max(cast(equal, "int8", importer), rank)), "bool", importer)
    return emit(R.logical_not(found)) if inverted else found


__all__ = ["gather_converters", "nonzero"]
