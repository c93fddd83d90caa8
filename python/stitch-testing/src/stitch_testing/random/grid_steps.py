# SPDX-License-Identifier: Apache-2.0
"""Steps of the random-graph generator that reduce over any axes and combine results along other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..reference.operators import is_float
from .sketch import Node, Sketch
from .steps import Step, combine, steps

#: Longer sums of half types are computed in float32, as in models. In the type itself they mean nothing.
_LONG_FOR_HALF = 64


def random_matrix(rng: np.random.Generator, max_elements: int) -> tuple[int, ...]:
    """Draw a shape of rank 2 to 4 without unit extents, of 4 to ``max_elements`` elements: tall, wide or even."""
    rank = int(rng.choice([2, 3, 4], p=[0.6, 0.25, 0.15]))
    budget = max(4.0, max_elements * float(rng.choice([1.0, 0.3, 0.05], p=[0.4, 0.3, 0.3])))
    weights = rng.dirichlet([1.0] * rank)
    shape = []
    for weight in weights:
        extent = max(2, int(budget**weight))
        if rng.random() < 0.5:  # extents that vectors and warps divide evenly, and others
            extent = max(2, extent // 32 * 32 if extent >= 32 else extent // 4 * 4)
        shape.append(extent)
    while math.prod(shape) > max(4, max_elements):
        longest = int(np.argmax(shape))
        shape[longest] = max(2, shape[longest] // 2)
        if max(shape) == 2:
            shape.pop()
    return tuple(shape)


def _wide(node: Node) -> bool:
    """Return whether a value has two axes to choose from."""
    return sum(extent > 1 for extent in node.shape) >= 2


def reduce_over(sketch: Sketch, x: Node, axes: Sequence[int], keepdims: bool) -> Node | None:
    """Reduce ``x`` over ``axes`` by a well-conditioned reduction. Return None if there is none."""
    length = math.prod(x.shape[axis] for axis in axes)
    source: Node | None = x
    if is_float(x.dtype) and x.dtype != "float32" and length > _LONG_FOR_HALF:
        source = sketch.emit(sketch.ops.astype(x.var, "float32"), x)
    if source is None:
        return None
    names = ["sum", "max", "min"] + (["mean", "sum"] if is_float(source.dtype) else [])
    sketch.rng.shuffle(names)
    for name in names[:2]:
        done = sketch.emit(getattr(sketch.ops, name)(source.var, axis=list(axes), keepdims=keepdims), source)
        if done is not None:
            return done
    # Numbers of both signs cancel in a long sum. Their magnitudes do not.
    magnitude = sketch.emit(sketch.ops.abs(source.var), source)
    return magnitude and sketch.emit(
        sketch.ops.mean(magnitude.var, axis=list(axes), keepdims=keepdims)
        if is_float(magnitude.dtype)
        else sketch.ops.max(magnitude.var, axis=list(axes), keepdims=keepdims),
        magnitude,
    )


def _some_axes(sketch: Sketch, rank: int) -> list[int]:
    """Draw axes to reduce: the last ones, the first ones, all, or any two or more."""
    kind = sketch.choice(["row", "column", "column", "all", "several"])
    if rank == 1 or kind == "all":
        return list(range(rank))
    if kind == "several":
        count = int(sketch.rng.integers(2, rank + 1))
        return sorted(int(axis) for axis in sketch.rng.choice(rank, count, replace=False))
    count = int(sketch.rng.integers(1, rank))
    return list(range(count)) if kind == "column" else list(range(rank - count, rank))


def reduce_any(sketch: Sketch) -> Node | None:
    """Add one reduction over any axes, often combined with its operand."""
    x = sketch.pick(sketch.numbers, lambda node: node.size > 1)
    if x is None:
        return None
    axes = _some_axes(sketch, len(x.shape))
    keepdims = bool(sketch.rng.random() < 0.7)
    reduced = reduce_over(sketch, x, axes, keepdims)
    if reduced is not None and keepdims and reduced.dtype == x.dtype and sketch.rng.random() < 0.6:
        return combine(sketch, x, reduced) or reduced
    return reduced


def both_ways(sketch: Sketch) -> Node | None:
    """Add row and column reductions. The second reduces the data, or the data combined with the first result."""
    x = sketch.pick(("float32", "int32"), _wide)
    if x is None:
        return None
    rank = len(x.shape)
    ways = (
        [[rank - 1], [0]] if rank == 2 or sketch.rng.random() < 0.6 else [[rank - 1], list(range(rank - 1))]
    )
    sketch.rng.shuffle(ways)
    first = reduce_over(sketch, x, ways[0], keepdims=True)
    if first is None:
        return None
    changed = combine(sketch, x, first) or x
    source = x if sketch.rng.random() < 0.4 else changed
    second = reduce_over(sketch, source, ways[1], keepdims=bool(sketch.rng.random() < 0.7))
    if second is not None and len(second.shape) == rank and sketch.rng.random() < 0.6:
        return combine(sketch, changed, second) or second
    return second


def chain(sketch: Sketch) -> Node | None:
    """Add reductions one after the other, each broadcast back along its axes."""
    x = sketch.pick(("float32", "int32"), lambda node: node.size > 1)
    for _ in range(int(sketch.rng.integers(2, 4))):
        if x is None:
            return None
        rank = len(x.shape)
        axes = sketch.choice([[rank - 1], [0], list(range(rank))])
        reduced = reduce_over(sketch, x, axes, keepdims=True)
        if reduced is None:
            return None
        if is_float(reduced.dtype) and sketch.rng.random() < 0.3:
            reduced = (
                sketch.emit(getattr(sketch.ops, sketch.choice(["tanh", "sigmoid"]))(reduced.var), reduced)
                or reduced
            )
        x = combine(sketch, x, reduced)
    return x


def crossed(sketch: Sketch) -> Node | None:
    """Add a reduced value, sometimes a heavy function of it, that is read along another axis."""
    x = sketch.pick(("float32",), _wide)
    if x is None:
        return None
    rank = len(x.shape)
    kept = int(sketch.choice([axis for axis, extent in enumerate(x.shape) if extent > 1]))
    others = [axis for axis in range(rank) if axis != kept]
    if sketch.rng.random() < 0.5:  # as a transposed matrix
        reduced = reduce_over(sketch, x, others, keepdims=True)
        order = [int(axis) for axis in sketch.rng.permutation(rank)]
        if order == sorted(order):
            order = order[::-1]
        turned = reduced and sketch.emit(sketch.ops.permute_dims(_heavy(sketch, reduced).var, order), reduced)
        if turned is None:
            return None
        partner = sketch.pick(("float32",), lambda node: _meets(node, turned.shape))
        partner = partner or sketch.emit(sketch.ops.permute_dims(x.var, order), x)
        return (partner and combine(sketch, partner, turned)) or turned
    vector = reduce_over(sketch, x, others, keepdims=False)
    if vector is None:
        return None
    vector, extent = _heavy(sketch, vector), x.shape[kept]
    partner = sketch.pick(("float32",), lambda node: node is not x and _meets(node, (extent,)))
    if partner is None:  # <others, extent>, each of whose rows reads every element of the vector
        count = int(sketch.choice([2, 3, 8, 17, 33]))
        return sketch.emit(sketch.ops.broadcast_to(vector.var, (count, extent)), vector) or vector
    return combine(sketch, partner, vector) or vector


def _meets(node: Node, shape: tuple[int, ...]) -> bool:
    """Return whether ``shape`` differs from the node's shape and broadcasts to it."""
    if len(node.shape) < len(shape) or node.shape == shape:
        return False
    tail = node.shape[len(node.shape) - len(shape) :]
    return all(small in (1, large) for small, large in zip(shape, tail, strict=True))


def _heavy(sketch: Sketch, x: Node) -> Node:
    """Return ``x`` or, half of the time, a heavy function of it."""
    if sketch.rng.random() < 0.5:
        return x
    return sketch.emit(getattr(sketch.ops, sketch.choice(["tanh", "sigmoid", "erf"]))(x.var), x) or x


#: (relative frequency, step).
GRID_STEPS: tuple[tuple[float, Step], ...] = (
    *steps(reduce_any),
    (1.3, both_ways),
    (1.0, chain),
    (1.5, crossed),
)
