# SPDX-License-Identifier: Apache-2.0
"""Constants, shapes that are inputs, and movement by constant sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..node import ANY, Conversion, Node, Unsupported, constant_of, dim, positive, shape_of


def _constant(node: Node) -> relax.Expr:
    given = node.attributes
    if "value" in given:
        value = np.asarray(given["value"])
    elif "value_float" in given or "value_floats" in given:
        value = np.asarray(given.get("value_float", given.get("value_floats")), "float32")
    elif "value_int" in given or "value_ints" in given:
        value = np.asarray(given.get("value_int", given.get("value_ints")), "int64")
    else:
        raise Unsupported(
            f"it has {', '.join(sorted(given)) or 'no value'}; only tensors of numbers are taken"
        )
    if value.dtype.kind in "OSU":
        raise Unsupported("it holds strings; only tensors of numbers are taken")
    return node.importer.constant(value)


def extents(node: Node, position: int, name: str) -> list[Any]:
    """Return an input that is a shape: ints and symbolic expressions.

    Raises:
        Unsupported: if it is only known at run time.
    """
    value = node.inputs[position]
    constant = constant_of(value)
    if constant is not None:
        return [int(v) for v in constant.reshape(-1)]
    if isinstance(value, relax.ShapeExpr):
        return [dim(v) for v in value.values]
    raise Unsupported(f"its input {position} ({name}) is only known at run time; make it an initializer")


def _reshape(node: Node) -> relax.Expr:
    """Reshape to sizes of which one may be -1. A size 0 keeps the input's, unless ``allowzero`` is set."""
    dims = node.shape(0)
    shape = list(node.attributes["shape"]) if node.opset < 5 else extents(node, 1, "shape")
    if 0 in dims and all(isinstance(d, int) for d in [*dims, *shape]):
        return _empty(node, dims, shape)
    if not node.attributes.get("allowzero", 0):
        if any(isinstance(d, int) and d == 0 and i >= len(dims) for i, d in enumerate(shape)):
            raise Unsupported(f"a shape {shape} keeps a dimension that the input {dims} lacks")
        shape = [dims[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(shape)]
    elif 0 in [d for d in shape if isinstance(d, int)]:
        if -1 in [d for d in shape if isinstance(d, int)]:
            raise Unsupported(f"a shape {shape} has 0 and -1 with allowzero")
        return relax.op.reshape(node.tensor(0), relax.ShapeExpr(shape))
    return relax.op.reshape(node.tensor(0), shape)


def _empty(node: Node, dims: list[Any], shape: list[Any]) -> relax.Expr:
    """Return a tensor without elements in another shape. TVM's reshape takes few of them."""
    if not node.attributes.get("allowzero", 0):
        shape = [dims[i] if d == 0 and i < len(dims) else d for i, d in enumerate(shape)]
    shape = [0 if d == -1 else d for d in shape]
    if math.prod(shape):
        raise Unsupported(f"a tensor {dims} without elements cannot have the shape {shape}")
    return relax.op.full(relax.ShapeExpr(shape), relax.const(0, node.dtype(0)), node.dtype(0))


def _expand(node: Node) -> relax.Expr:
    """Broadcast input and shape with each other."""
    given, shape = node.shape(0), extents(node, 1, "shape")
    rank = max(len(given), len(shape))
    one: list[Any] = [1]
    given, shape = one * (rank - len(given)) + given, one * (rank - len(shape)) + shape
    target = []
    for a, b in zip(given, shape):
        if isinstance(b, int) and b == 1:
            target.append(a)
        elif isinstance(a, int) and a == 1:
            target.append(b)
        elif isinstance(a, int) and isinstance(b, int) and a != b:
            raise Unsupported(f"an input {given} cannot be broadcast to {shape}")
        else:
            target.append(a)
    return relax.op.broadcast_to(node.tensor(0), relax.ShapeExpr(target))


def _constant_of_shape(node: Node) -> relax.Expr:
    value = np.asarray(node.attributes.get("value", np.zeros(1, "float32"))).reshape(-1)
    fill = relax.const(value[0], str(value.dtype))
    return relax.op.full(relax.ShapeExpr(extents(node, 0, "shape")), fill, str(value.dtype))


def _unsqueeze(node: Node) -> relax.Expr:
    axes = list(node.attributes["axes"]) if node.opset < 13 else node.ints(1, "axes")
    dims = node.shape(0)
    rank = len(dims) + len(axes)
    new = {positive(a, rank) for a in axes}
    if len(new) < len(axes):
        raise Unsupported(f"the axes {axes} name a dimension twice")
    rest = iter(dims)
    return relax.op.reshape(
        node.tensor(0), relax.ShapeExpr([1 if i in new else next(rest) for i in range(rank)])
    )


def _squeeze(node: Node) -> relax.Expr:
    dims = node.shape(0)
    if node.opset < 13:
        axes = node.attributes.get("axes")
    else:
        axes = node.ints(1, "axes") if node.has(1) else None
    if axes is None:
        if not all(isinstance(d, int) for d in dims):
            raise Unsupported("it has no axes, and its input has symbolic dimensions; give it axes")
        gone = {i for i, d in enumerate(dims) if d == 1}
    else:
        gone = {positive(a, len(dims)) for a in axes}
        if any(dims[a] != 1 for a in gone if isinstance(dims[a], int)):
            raise Unsupported(f"an axis of {sorted(gone)} of {dims} has not the size 1")
    return relax.op.reshape(node.tensor(0), relax.ShapeExpr([d for i, d in enumerate(dims) if i not in gone]))


def _flatten(node: Node) -> relax.Expr:
    dims = node.shape(0)
    axis = node.attributes["axis"]
    axis = axis + len(dims) if axis < 0 else axis
    if not 0 <= axis <= len(dims):
        raise Unsupported(f"axis {node.attributes['axis']} is no dimension of {len(dims)}")
    sizes: list[Any] = [1, 1]
    for i, d in enumerate(dims):
        sizes[int(i >= axis)] = sizes[int(i >= axis)] * d
    return relax.op.reshape(node.tensor(0), relax.ShapeExpr(sizes))


def _at_run_time(node: Node, position: int, count: int) -> list[Any]:
    """Return new symbols for the numbers of an input that are computed at run time."""
    numbers = node.tensor(position)
    if shape_of(numbers) != [count]:
        raise Unsupported(f"its input {position} has the shape {shape_of(numbers)} instead of {[count]}")
    numbers = node.emit(relax.op.astype(numbers, "int64")) if node.dtype(position) != "int64" else numbers
    symbols = [tirx.Var(f"{node.proto.input[position]}_{i}", "int64") for i in range(count)]
    node.bb.match_cast(node.emit(relax.op.tensor_to_shape(numbers)), relax.ShapeType(symbols))
    return symbols


def _tile(node: Node) -> relax.Expr:
    dims = node.shape(0)
    known = constant_of(node.inputs[1]) is not None or isinstance(node.inputs[1], relax.ShapeExpr)
    repeats = extents(node, 1, "repeats") if known else _at_run_time(node, 1, len(dims))
    if len(repeats) != len(dims):
        raise Unsupported(f"{len(repeats)} repeats are given for {len(dims)} dimensions")
    if all(isinstance(r, int) for r in repeats):
        return relax.op.tile(node.tensor(0), repeats) if dims else node.tensor(0)
    ones = [each for d in dims for each in (1, d)]
    copies = [each for r, d in zip(repeats, dims) for each in (r, d)]
    spread = node.emit(relax.op.reshape(node.tensor(0), relax.ShapeExpr(ones)))
    spread = node.emit(relax.op.broadcast_to(spread, relax.ShapeExpr(copies)))
    return relax.op.reshape(spread, relax.ShapeExpr([d * r for r, d in zip(repeats, dims)]))


def _transpose(node: Node) -> relax.Expr:
    x = node.tensor(0)
    rank = len(shape_of(x))
    perm = node.attributes.get("perm", list(range(rank))[::-1])
    constant = node.constant(0)
    if constant is not None:
        return node.importer.constant(np.ascontiguousarray(np.transpose(constant, perm)))
    return relax.op.permute_dims(x, perm) if rank else x


def _split(node: Node) -> tuple[relax.Expr, ...]:
    x, count = node.tensor(0), len(node.outputs)
    dims = node.shape(0)
    axis = positive(node.attributes["axis"], len(dims))
    sizes = (
        node.attributes.get("split") if node.opset < 13 else (node.ints(1, "split") if node.has(1) else None)
    )
    if sizes is None:
        if not isinstance(dims[axis], int):
            raise Unsupported(f"it splits a symbolic dimension {dims[axis]}; give it sizes")
        parts = node.attributes.get("num_outputs", count)
        chunk = -(-dims[axis] // parts)
        sizes = [max(0, min(chunk, dims[axis] - i * chunk)) for i in range(parts)]
    if len(sizes) < count:
        raise Unsupported(f"{len(sizes)} sizes are given for {count} outputs")
    if isinstance(dims[axis], int) and sum(sizes) != dims[axis]:
        raise Unsupported(f"the sizes {sizes} do not add up to {dims[axis]}")
    if count == 1:
        return (x,)
    ends = [int(e) for e in np.cumsum(sizes)]
    starts = [0, *ends[:-1]]
    return tuple(node.emit(relax.op.strided_slice(x, [axis], [a], [b])) for a, b in zip(starts, ends))


CONVERSIONS = {
    ("", "Constant"): Conversion(
        _constant, dict.fromkeys(("value", "value_float", "value_floats", "value_int", "value_ints"), ANY)
    ),
    ("", "Reshape"): Conversion(_reshape, {"allowzero": ANY, "shape": ANY}),
    ("", "Expand"): Conversion(_expand),
    ("", "ConstantOfShape"): Conversion(_constant_of_shape, {"value": ANY}),
    ("", "Unsqueeze"): Conversion(_unsqueeze, {"axes": ANY}),
    ("", "Squeeze"): Conversion(_squeeze, {"axes": ANY}),
    ("", "Flatten"): Conversion(_flatten, {"axis": ANY}),
    ("", "Tile"): Conversion(_tile, since=6),
    ("", "Transpose"): Conversion(_transpose, {"perm": ANY}),
    ("", "Split"): Conversion(_split, {"axis": ANY, "split": ANY, "num_outputs": ANY}, since=2),
}
