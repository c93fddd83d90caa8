# SPDX-License-Identifier: Apache-2.0
"""Sequences whose length is known at import."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..node import ANY, Conversion, Node, Unsupported, positive


def _split_to_sequence(node: Node) -> relax.Tuple:
    """Split into chunks of one size, the last one smaller, or of given sizes. Without sizes each has one element."""
    x, dims = node.tensor(0), node.shape(0)
    axis = positive(node.attributes["axis"], len(dims))
    if not isinstance(dims[axis], int):
        raise Unsupported(f"it splits the symbolic dimension {dims[axis]}; fix it (shape_dict, or --shape)")
    split = node.known(1, "split") if node.has(1) else np.array(1)
    if split.ndim == 0:
        size = int(split)
        if size < 1:
            raise Unsupported(f"it splits into chunks of {size}")
        sizes = [min(size, dims[axis] - i) for i in range(0, dims[axis], size)]
    else:
        sizes = [int(s) for s in split]
    if sum(sizes) != dims[axis]:
        raise Unsupported(f"the sizes {sizes} do not add up to {dims[axis]}")
    starts = np.cumsum([0, *sizes])
    parts = [
        node.emit(relax.op.strided_slice(x, [axis], [int(a)], [int(a) + s])) for a, s in zip(starts, sizes)
    ]
    if not node.attributes["keepdims"] and not node.has(1):
        parts = [node.emit(relax.op.squeeze(p, [axis])) for p in parts]
    return relax.Tuple(parts)


def _items(node: Node) -> list[relax.Expr]:
    """Return the tensors of a sequence whose length is known."""
    value = node.inputs[0]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TupleType):
        return [node.emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]
    raise Unsupported("its sequence is an input or a result of control flow; give it tensors in its place")


def _place(node: Node, position: int, count: int, default: int, most: int) -> int:
    at = int(node.known(position, "position").reshape(-1)[0]) if node.has(position) else default
    if not -count <= at <= most:
        raise Unsupported(f"the position {at} lies outside of a sequence of {count}")
    return at + count if at < 0 else at


def _insert(node: Node) -> relax.Tuple:
    items = _items(node)
    items.insert(_place(node, 2, len(items), len(items), len(items)), node.tensor(1))
    return relax.Tuple(items)


def _erase(node: Node) -> relax.Tuple:
    items = _items(node)
    items.pop(_place(node, 1, len(items), -1, len(items) - 1))
    return relax.Tuple(items)


def _at(node: Node) -> relax.Expr:
    items = _items(node)
    return items[_place(node, 1, len(items), -1, len(items) - 1)]


def _length(node: Node) -> relax.Expr:
    return relax.const(len(_items(node)), "int64")


def _concat(node: Node) -> relax.Expr:
    items = _items(node)
    axis = node.attributes["axis"]
    return (
        relax.op.stack(items, axis=axis) if node.attributes["new_axis"] else relax.op.concat(items, axis=axis)
    )


CONVERSIONS = {
    ("", "SplitToSequence"): Conversion(_split_to_sequence, {"axis": ANY, "keepdims": ANY}, sequence=True),
    ("", "SequenceInsert"): Conversion(_insert, sequence=True),
    ("", "SequenceErase"): Conversion(_erase, sequence=True),
    ("", "SequenceAt"): Conversion(_at),
    ("", "SequenceLength"): Conversion(_length),
    ("", "ConcatFromSequence"): Conversion(_concat, {"axis": ANY, "new_axis": (0, 1)}),
}
