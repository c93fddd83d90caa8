# SPDX-License-Identifier: Apache-2.0
"""Operators that read or write elements at indices, and counts along axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from .....relax.rewriting.extents import require_at_least, require_extent
from ....symbolic.computed import computed
from ..node import ANY, Conversion, Node, Unsupported, constant_of, dtype_of, positive, scalar, shape_of
from .constants import extents


def from_start(node: Node, indices: relax.Expr, extent: Any) -> relax.Expr:
    """Return indices counted from the start: negative ones count from the end of ``extent`` elements.

    A run checks that a symbolic extent is large enough for constant indices.
    """
    known = constant_of(indices)
    if known is not None and known.size:
        require_extent(node.bb, extent, max(int(known.max()) + 1, -int(known.min())))
    dtype = dtype_of(indices)
    if dtype.startswith("uint"):
        return indices
    if isinstance(extent, int):
        size = scalar(extent, dtype)
    else:
        size = node.emit(
            relax.op.reshape(relax.op.shape_to_tensor(relax.ShapeExpr([extent])), relax.ShapeExpr([]))
        )
        size = size if dtype == "int64" else node.emit(relax.op.astype(size, dtype))
    zero = scalar(0, dtype)
    return node.emit(relax.op.where(relax.op.less(indices, zero), relax.op.add(indices, size), indices))


def _one_hot(node: Node) -> relax.Expr:
    """Compare indices with a range along a new axis. An index outside has no element that is on."""
    depth = int(node.known(1, "depth").reshape(-1)[0])
    values = node.tensor(2)
    indices = node.tensor(0)
    rank = len(shape_of(indices))
    axis = positive(node.attributes["axis"], rank + 1)
    kind = dtype_of(indices)
    if not kind.startswith(("int", "uint")):
        indices, kind = node.emit(relax.op.astype(indices, "int64")), "int64"
    if kind in ("uint8", "int8", "int16", "uint16"):
        indices, kind = node.emit(relax.op.astype(indices, "int64")), "int64"
    indices = from_start(node, indices, depth)
    line = np.arange(depth, dtype=kind).reshape([depth if i == axis else 1 for i in range(rank + 1)])
    hit = node.emit(relax.op.equal(relax.op.expand_dims(indices, axis), relax.const(line, kind)))
    off, on = (
        node.emit(relax.op.reshape(relax.op.strided_slice(values, [0], [i], [i + 1]), relax.ShapeExpr([])))
        for i in (0, 1)
    )
    return relax.op.where(hit, on, off)


def _gather(node: Node) -> relax.Expr:
    data, indices = node.tensor(0), node.tensor(1)
    axis = positive(node.attributes["axis"], len(node.shape(0)))
    known = node.constant(1)
    size = node.shape(0)[axis]
    if known is not None and isinstance(size, int):
        if known.size and (known.min() < -size or known.max() >= size):
            raise Unsupported(
                f"an index of {known.min()}..{known.max()} lies outside of the {size} elements of axis {axis}"
            )
        indices = relax.const(np.where(known < 0, known + size, known).astype(known.dtype), str(known.dtype))
    else:
        indices = from_start(node, indices, size)
    return relax.op.take(data, indices, axis)


def _gather_elements(node: Node) -> relax.Expr:
    axis = positive(node.attributes["axis"], len(node.shape(0)))
    return relax.op.gather_elements(
        node.tensor(0), from_start(node, node.tensor(1), node.shape(0)[axis]), axis
    )


def _reduction(node: Node) -> str:
    reduction = str(node.attributes.get("reduction", "none"))
    return "update" if reduction == "none" else reduction


def _scatter_elements(node: Node) -> relax.Expr:
    axis = positive(node.attributes["axis"], len(node.shape(0)))
    indices = from_start(node, node.tensor(1), node.shape(0)[axis])
    return relax.op.scatter_elements(
        node.tensor(0), indices, node.tensor(2), axis=axis, reduction=_reduction(node)
    )


def _cumulated(node: Node) -> relax.Expr:
    axis = positive(int(node.known(1, "axis").reshape(-1)[0]), len(node.shape(0)))
    op = relax.op.cumsum if node.proto.op_type == "CumSum" else relax.op.cumprod
    x = node.tensor(0)
    if node.attributes["reverse"]:
        x = node.emit(relax.op.flip(x, axis))
    y = node.emit(op(x, axis, exclusive=bool(node.attributes["exclusive"])))
    return relax.op.flip(y, axis) if node.attributes["reverse"] else y


def _top_k(node: Node) -> Any:
    """Return the greatest or least elements. They are sorted even if the node does not ask for it."""
    k = node.attributes["k"] if node.opset < 10 else int(node.known(1, "K").reshape(-1)[0])
    axis = positive(node.attributes["axis"], len(node.shape(0)))
    size = node.shape(0)[axis]
    if isinstance(size, int) and not 0 <= k <= size:
        raise Unsupported(f"k = {k} of {size} elements of axis {axis}")
    if node.dtype(0) in ("uint64", "uint32", "uint16", "bfloat16"):
        raise Unsupported(f"it sorts {node.dtype(0)}, which TVM does not; cast the input")
    require_extent(node.bb, size, k)
    if k == 0:  # TVM would return all elements
        none = relax.ShapeExpr([k if i == axis else d for i, d in enumerate(node.shape(0))])
        return tuple(relax.op.full(none, scalar(0, kind), kind) for kind in (node.dtype(0), "int64"))
    largest = bool(node.attributes.get("largest", 1))
    both = node.emit(relax.op.topk(node.tensor(0), k, axis, ret_type="both", largest=largest, dtype="int64"))
    return tuple(node.emit(relax.TupleGetItem(both, i)) for i in range(2))


def _reverse_sequence(node: Node) -> relax.Expr:
    """Reverse the first elements of each row, as many as ``sequence_lens`` says."""
    given, rank = node.attributes, len(node.shape(0))
    batch, time = positive(given["batch_axis"], rank), positive(given["time_axis"], rank)
    if {batch, time} != {0, 1}:
        raise Unsupported(f"it has batch_axis {batch} and time_axis {time}; 0 and 1 in any order are taken")

    def reversed_of(x: te.Tensor, lengths: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            last = tirx.Cast("int64", lengths(i[batch])) - 1
            at = tirx.if_then_else(
                tirx.Cast("int64", i[time]) <= last, last - i[time], tirx.Cast("int64", i[time])
            )
            return x(*[at if axis == time else i[axis] for axis in range(rank)])

        return te.compute(x.shape, element, name="reverse_sequence")

    return node.bb.call_te(reversed_of, node.tensor(0), node.tensor(1))


def _tensor_scatter(node: Node) -> relax.Expr:
    """Write an update into a cache, each batch from its own position on, circularly if the mode says so."""
    given, rank = node.attributes, len(node.shape(0))
    axis = positive(given["axis"], rank)
    circular = given["mode"] == "circular"
    size, count = node.static_shape(0)[axis], node.static_shape(1)[axis]

    def scattered(cache: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            start = tirx.Cast("int64", starts[0](i[0])) if starts else tirx.const(0, "int64")
            at = tirx.Cast("int64", i[axis]) - start
            at = tirx.floormod(at, tirx.const(size, "int64")) if circular else at
            inside = tirx.all(at >= 0, at < count)
            return tirx.if_then_else(
                inside, update(*[at if a == axis else i[a] for a in range(rank)]), cache(*i)
            )

        return te.compute(cache.shape, element, name="tensor_scatter")

    starts = [node.tensor(2)] if node.has(2) else []
    return node.bb.call_te(scattered, node.tensor(0), node.tensor(1), *starts)


def _pad(node: Node) -> relax.Expr:
    """Take elements of indices that a mode gives for each axis. Negative pads cut.

    A run checks that symbolic pads are not negative.
    """
    x, dims, given = node.tensor(0), node.shape(0), node.attributes
    rank = len(dims)
    pads = list(given["pads"]) if node.opset < 11 else extents(node, 1, "pads")
    axes = [positive(a, rank) for a in (node.ints(3, "axes") if node.has(3) else range(rank))]
    if len(pads) != 2 * len(axes):
        raise Unsupported(f"{len(pads)} pads are given for {len(axes)} axes")
    before = {a: pads[i] for i, a in enumerate(axes)}
    behind = {a: pads[len(axes) + i] for i, a in enumerate(axes)}
    for axis in sorted(before):
        low, high, size = before[axis], behind[axis], dims[axis]
        for width in (low, high):
            require_at_least(node.bb, width, 0)
        if any(isinstance(width, int) and width < 0 for width in (low, high)):
            x, size = _without_ends(node, x, axis, low, high)
        low, high = (max(0, width) if isinstance(width, int) else width for width in (low, high))
        if isinstance(low, int) and isinstance(high, int) and not low and not high:
            continue
        x = _extended(node, x, axis, (low, high), size)
    return x if x is not node.tensor(0) else relax.op.reshape(x, relax.ShapeExpr(dims))


def _without_ends(node: Node, x: relax.Expr, axis: int, low: Any, high: Any) -> tuple[relax.Expr, int]:
    """Return a tensor without as many elements at the ends of an axis as negative pads say, and the size left."""
    size = node.shape(0)[axis]
    if not isinstance(size, int):
        raise Unsupported(f"it cuts the symbolic dimension {size}; fix it")
    first, last = (min(0, width) if isinstance(width, int) else 0 for width in (low, high))
    start, end = -first, max(-first, size + last)
    return node.emit(relax.op.strided_slice(x, [axis], [start], [end])), end - start


def _extended(node: Node, x: relax.Expr, axis: int, widths: tuple[Any, Any], size: Any) -> relax.Expr:
    """Return a tensor with more elements at both ends of an axis. Widths are not negative, and may be symbolic."""
    mode, dtype, (low, high) = node.attributes["mode"], node.dtype(0), widths
    if mode == "constant":
        fill, dims = _fill(node, dtype), shape_of(x)
        parts = [
            relax.op.full(relax.ShapeExpr([*dims[:axis], width, *dims[axis + 1 :]]), fill, dtype)
            for width in widths
        ]
        used = [not isinstance(width, int) or width > 0 for width in widths]
        tensors = [part for part, there in zip((parts[0], x, parts[1]), (used[0], True, used[1])) if there]
        return node.emit(relax.op.concat(tensors, axis))
    if all(isinstance(number, int) for number in (low, high, size)):
        spots = _mirrored(np.arange(-low, size + high), size, mode, _NUMPY)
        positions = relax.const(spots.astype("int64"), "int64")
    else:
        numbers = (low, size, low + size + high)
        positions = computed(node.bb, "mirrored", partial(_mirrored_symbolically, mode), (), numbers)
    return node.emit(relax.op.take(x, positions, axis, mode="fast"))


def _fill(node: Node, dtype: str) -> relax.Expr:
    if node.opset < 11:
        return scalar(node.attributes.get("value", 0.0), dtype)
    if not node.has(2):
        return scalar(False if dtype == "bool" else 0, dtype)
    value = node.tensor(2)
    return value if not shape_of(value) else node.emit(relax.op.reshape(value, relax.ShapeExpr([])))


@dataclass(frozen=True)
class _Arithmetic:
    """The operations by which ``_mirrored`` computes, of arrays or of expressions."""

    least: Callable[[Any, Any], Any]
    at_least: Callable[[Any, int], Any]
    modulo: Callable[[Any, Any], Any]
    absolute: Callable[[Any], Any]


_NUMPY = _Arithmetic(np.minimum, np.maximum, np.mod, np.abs)
_TIR = _Arithmetic(
    tirx.min, lambda x, bound: tirx.max(x, tirx.const(bound, "int64")), tirx.floormod, tirx.abs
)


def _mirrored(spots: Any, size: Any, mode: str, arithmetic: _Arithmetic) -> Any:
    """Return the elements that lie at positions outside of an axis."""
    if mode == "edge":
        return arithmetic.at_least(arithmetic.least(spots, size - 1), 0)
    if mode == "wrap":
        return arithmetic.modulo(spots, size)
    period = arithmetic.at_least(2 * (size - 1), 1)
    spots = arithmetic.modulo(arithmetic.absolute(spots), period)
    return arithmetic.least(spots, period - spots)


def _mirrored_symbolically(mode: str, low: Any, size: Any, total: Any) -> te.Tensor:
    """Return the elements that lie at ``total`` positions of an axis, from ``-low`` on."""
    return te.compute((total,), lambda i: _mirrored(i - low, size, mode, _TIR), name="mirrored")


def _depth_to_space(node: Node) -> relax.Expr:
    b, c, h, w = node.shape(0)
    block = node.attributes["blocksize"]
    inner = c // (block * block)
    if node.attributes.get("mode", "DCR") == "DCR":
        x = node.emit(relax.op.reshape(node.tensor(0), relax.ShapeExpr([b, block, block, inner, h, w])))
        x = node.emit(relax.op.permute_dims(x, [0, 3, 4, 1, 5, 2]))
    else:
        x = node.emit(relax.op.reshape(node.tensor(0), relax.ShapeExpr([b, inner, block, block, h, w])))
        x = node.emit(relax.op.permute_dims(x, [0, 1, 4, 2, 5, 3]))
    return relax.op.reshape(x, relax.ShapeExpr([b, inner, h * block, w * block]))


def _space_to_depth(node: Node) -> relax.Expr:
    b, c, h, w = node.shape(0)
    block = node.attributes["blocksize"]
    split = relax.ShapeExpr([b, c, h // block, block, w // block, block])
    order = [0, 3, 5, 1, 2, 4] if node.attributes.get("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    x = node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(node.tensor(0), split)), order))
    return relax.op.reshape(x, relax.ShapeExpr([b, c * block * block, h // block, w // block]))


_AXIS = {"axis": ANY}
_CUMULATED = {"exclusive": ANY, "reverse": ANY}

CONVERSIONS = {
    ("", "OneHot"): Conversion(_one_hot, _AXIS),
    ("", "Gather"): Conversion(_gather, _AXIS),
    ("", "GatherElements"): Conversion(_gather_elements, _AXIS),
    ("", "Scatter"): Conversion(_scatter_elements, _AXIS),
    ("", "ScatterElements"): Conversion(
        _scatter_elements, {"axis": ANY, "reduction": ("none", "add", "mul", "min", "max")}
    ),
    ("", "CumSum"): Conversion(_cumulated, _CUMULATED),
    ("", "CumProd"): Conversion(_cumulated, _CUMULATED),
    ("", "TopK"): Conversion(_top_k, {"axis": ANY, "k": ANY, "largest": ANY, "sorted": ANY}),
    ("", "ReverseSequence"): Conversion(_reverse_sequence, {"batch_axis": ANY, "time_axis": ANY}),
    ("", "TensorScatter"): Conversion(_tensor_scatter, {"axis": ANY, "mode": ("linear", "circular")}),
    ("", "Pad"): Conversion(
        _pad, {"mode": ("constant", "edge", "reflect", "wrap"), "pads": ANY, "value": ANY}, since=2
    ),
    ("", "DepthToSpace"): Conversion(_depth_to_space, {"blocksize": ANY, "mode": ("DCR", "CRD")}),
    ("", "SpaceToDepth"): Conversion(_space_to_depth, {"blocksize": ANY, "mode": ("DCR", "CRD")}),
}
