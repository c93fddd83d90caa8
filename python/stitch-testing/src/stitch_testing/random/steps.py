# SPDX-License-Identifier: Apache-2.0
"""The steps of the random-graph generator: each adds one operator, or a safe few, to a growing graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tvm_stitch.graph.dtype import HALF

from ..reference.operators import is_float
from .sketch import Node, Sketch


def _unary_light(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers)
    if x is None:
        return None
    kind = sketch.choice(["negative", "abs", "square", "clip", "relu", "sqrt", "round"])
    if kind == "square":
        x = x if np.abs(x.bound.value).max() <= 12 else sketch.emit(sketch.ops.clip(x.var, -6, 6), x)
        return x and sketch.emit(sketch.ops.multiply(x.var, x.var), x)
    if kind == "clip" or not is_float(x.dtype):
        if kind in ("negative", "abs"):
            return sketch.emit(getattr(sketch.ops, kind)(x.var), x)
        low, high = sorted(int(v) for v in sketch.rng.integers(-6, 7, 2))
        return sketch.emit(sketch.ops.clip(x.var, low, high + 2), x)
    if kind == "sqrt":
        positive = sketch.emit(sketch.ops.abs(x.var), x)
        shifted = positive and sketch.emit(
            sketch.ops.add(positive.var, sketch.const(0.25, x.dtype)), positive
        )
        return shifted and sketch.emit(sketch.ops.sqrt(shifted.var), shifted)
    if kind == "relu":
        return sketch.emit(sketch.ops.maximum(x.var, sketch.const(0.0, x.dtype)), x)
    if kind == "round":
        # CUDA lacks the rounding function of half types that TVM calls. Models round in float32 anyway.
        name = sketch.choice(["round", "floor", "ceil", "trunc"])
        return sketch.emit(getattr(sketch.ops, name)(x.var), x) if x.dtype == "float32" else None
    return sketch.emit(getattr(sketch.ops, kind)(x.var), x)


def _unary_heavy(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.floats)
    if x is None:
        return None
    kind = sketch.choice(["exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "rsqrt", "power"])
    if kind in ("tanh", "sigmoid", "erf"):
        return sketch.emit(getattr(sketch.ops, kind)(x.var), x)
    if kind in ("exp", "sin", "cos"):
        if np.abs(x.bound.value).max() > 4.5:
            x = sketch.emit(sketch.ops.clip(x.var, -4, 4), x) or x
        return sketch.emit(getattr(sketch.ops, kind)(x.var), x)
    positive = sketch.emit(sketch.ops.abs(x.var), x)
    shifted = positive and sketch.emit(sketch.ops.add(positive.var, sketch.const(0.5, x.dtype)), positive)
    if shifted is None:
        return None
    if kind == "power":
        if x.dtype == "bfloat16":  # Relax refuses this dtype
            return None
        return sketch.emit(
            sketch.ops.power(shifted.var, sketch.const(float(sketch.choice([-1.5, 0.5, 1.7, 2.0])), x.dtype)),
            shifted,
        )
    return sketch.emit(getattr(sketch.ops, kind)(shifted.var), shifted)


def _broadcastable(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def combine(sketch: Sketch, a: Node, b: Node) -> Node | None:
    """Add a binary operator on two values of one dtype whose shapes broadcast."""
    if not is_float(a.dtype):
        name = sketch.choice(["add", "subtract", "multiply", "maximum", "minimum"])
        return sketch.emit(getattr(sketch.ops, name)(a.var, b.var), a, b)
    name = sketch.choice(["add", "subtract", "multiply", "maximum", "minimum", "divide"])
    if name == "divide":
        positive = sketch.emit(sketch.ops.abs(b.var), b)
        b_safe = positive and sketch.emit(sketch.ops.add(positive.var, sketch.const(0.5, b.dtype)), positive)
        return b_safe and sketch.emit(sketch.ops.divide(a.var, b_safe.var), a, b_safe)
    return sketch.emit(getattr(sketch.ops, name)(a.var, b.var), a, b)


def _binary(sketch: Sketch) -> Node | None:
    a = sketch.pick(sketch.numbers)
    if a is None:
        return None
    if sketch.rng.random() < 0.25:
        value = int(sketch.rng.integers(1, 5)) if a.dtype == "int32" else float(sketch.rng.uniform(0.25, 2.5))
        names = ["add", "subtract", "multiply", "maximum", "minimum", "divide"]
        if a.dtype == "int32":
            names = ["add", "subtract", "multiply", "floor_divide", "floor_mod"]
        return sketch.emit(getattr(sketch.ops, sketch.choice(names))(a.var, sketch.const(value, a.dtype)), a)
    b = sketch.pick((a.dtype,), lambda node: node is not a and _broadcastable(node.shape, a.shape))
    return b and combine(sketch, a, b)


def _logical(sketch: Sketch) -> Node | None:
    a = sketch.pick(("bool",))
    if a is None:
        return None
    b = sketch.pick(("bool",), lambda node: node is not a and _broadcastable(node.shape, a.shape))
    if b is None or sketch.rng.random() < 0.3:
        return sketch.emit(sketch.ops.logical_not(a.var), a)
    return sketch.emit(getattr(sketch.ops, sketch.choice(["logical_and", "logical_or"]))(a.var, b.var), a, b)


def _compare(sketch: Sketch) -> Node | None:
    a = sketch.pick(sketch.numbers)
    if a is None:
        return None
    operator = getattr(sketch.ops, sketch.choice(["greater", "less", "greater_equal", "less_equal"]))
    b = sketch.pick((a.dtype,), lambda node: node is not a and _broadcastable(node.shape, a.shape))
    if b is None or sketch.rng.random() < 0.4:
        return sketch.emit(operator(a.var, sketch.const(1 if a.dtype == "int32" else 0.3, a.dtype)), a)
    return sketch.emit(operator(a.var, b.var), a, b)


def _where(sketch: Sketch) -> Node | None:
    condition = sketch.pick(("bool",))
    if condition is None:
        return None
    a = sketch.pick(sketch.numbers, lambda node: _broadcastable(node.shape, condition.shape))
    if a is None:
        return None
    shape = np.broadcast_shapes(a.shape, condition.shape)
    b = sketch.pick((a.dtype,), lambda node: node is not a and _broadcastable(node.shape, shape))
    if b is None or sketch.rng.random() < 0.4:
        return sketch.emit(sketch.ops.where(condition.var, a.var, sketch.const(0, a.dtype)), condition, a)
    return sketch.emit(sketch.ops.where(condition.var, a.var, b.var), condition, a, b)


def _cast(sketch: Sketch) -> Node | None:
    x = sketch.pick((*sketch.numbers, "bool"))
    if x is None:
        return None
    targets = [dtype for dtype in sketch.numbers if dtype != x.dtype]
    if x.dtype == "bool":
        targets = ["float32", "int32"]
    if x.dtype in HALF:
        targets = ["float32", "float32", "int32"]
    return sketch.emit(sketch.ops.astype(x.var, sketch.choice(targets)), x)


def _reduce(sketch: Sketch, column_reduces: bool) -> Node | None:
    x = sketch.pick(sketch.numbers, lambda node: len(node.shape) > 0 and node.size > 1)
    if x is None:
        return None
    rank = len(x.shape)
    if column_reduces and sketch.rng.random() < 0.4:
        axes = sorted(
            int(a) for a in sketch.rng.choice(rank, int(sketch.rng.integers(1, rank + 1)), replace=False)
        )
    else:
        count = 1 + int(sketch.rng.binomial(rank - 1, 0.3)) if rank > 1 else 1
        axes = list(range(rank - count, rank))
    length = math.prod(x.shape[axis] for axis in axes)
    names = ["sum", "max", "min"] + (["mean", "mean"] if is_float(x.dtype) else [])
    if length <= 6:
        names.append("prod")
    keepdims = bool(sketch.rng.random() < 0.75)
    reduced = sketch.emit(getattr(sketch.ops, sketch.choice(names))(x.var, axis=axes, keepdims=keepdims), x)
    if reduced is not None and keepdims and sketch.rng.random() < 0.6:
        return combine(sketch, x, reduced) or reduced  # the typical pattern: reduce, then broadcast
    return reduced


def _factor(rng: np.random.Generator, size: int, rank: int) -> list[int]:
    shape = []
    for _ in range(rank - 1):
        divisors = [d for d in range(1, min(size, 4096) + 1) if size % d == 0]
        shape.append(int(divisors[int(rng.integers(len(divisors)))]))
        size //= shape[-1]
    shape.append(size)
    rng.shuffle(shape)
    return shape


def _reshape(sketch: Sketch) -> Node | None:
    x = sketch.pick((*sketch.numbers, "bool"))
    if x is None:
        return None
    rank = len(x.shape)
    kind = sketch.choice(["merge", "split", "any", "unit"])
    shape = list(x.shape)
    if kind == "merge" and rank >= 2:
        axis = int(sketch.rng.integers(rank - 1))
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    elif kind == "split" and 1 <= rank <= 4:
        axis = int(sketch.rng.integers(rank))
        shape[axis : axis + 1] = _factor(sketch.rng, shape[axis], 2)
    elif kind == "unit" and rank <= 4:
        axis = int(sketch.rng.integers(rank + 1))
        return sketch.emit(sketch.ops.expand_dims(x.var, axis), x)
    elif kind == "unit" and 1 in shape and rank >= 2:
        return sketch.emit(sketch.ops.squeeze(x.var, [shape.index(1)]), x)
    else:
        shape = _factor(sketch.rng, x.size, int(sketch.rng.integers(1, 6)))
    return sketch.emit(sketch.ops.reshape(x.var, shape), x)


def _transpose(sketch: Sketch) -> Node | None:
    x = sketch.pick((*sketch.numbers, "bool"), lambda node: len(node.shape) >= 2)
    if x is None:
        return None
    return sketch.emit(
        sketch.ops.permute_dims(x.var, [int(a) for a in sketch.rng.permutation(len(x.shape))]), x
    )


def _slice(sketch: Sketch) -> Node | None:
    x = sketch.pick((*sketch.numbers, "bool"), lambda node: node.size > 1)
    if x is None:
        return None
    axis = int(sketch.choice([a for a, dim in enumerate(x.shape) if dim > 1]))
    dim = x.shape[axis]
    begin = int(sketch.rng.integers(0, dim))
    end = int(sketch.rng.integers(begin + 1, dim + 1))
    stride = int(sketch.choice([1, 1, 1, 2, 3]))
    return sketch.emit(sketch.ops.strided_slice(x.var, [axis], [begin], [end], [stride]), x)


def _concat(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers, lambda node: len(node.shape) >= 1)
    if x is None:
        return None
    axis = int(sketch.rng.integers(len(x.shape)))

    def fits(node: Node) -> bool:
        return len(node.shape) == len(x.shape) and all(
            a == b for i, (a, b) in enumerate(zip(node.shape, x.shape, strict=True)) if i != axis
        )

    others = [
        node
        for node in (sketch.pick((x.dtype,), fits) for _ in range(int(sketch.rng.integers(1, 3))))
        if node
    ]
    parts = [x, *others]
    sketch.rng.shuffle(parts)
    return sketch.emit(sketch.ops.concat([node.var for node in parts], axis=axis), *parts)


def _broadcast(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers, lambda node: len(node.shape) < 5 or 1 in node.shape)
    if x is None:
        return None
    shape = [
        int(sketch.choice((2, 3, 8, 17, 33))) if dim == 1 and sketch.rng.random() < 0.6 else dim
        for dim in x.shape
    ]
    if len(shape) < 5 and sketch.rng.random() < 0.5:
        shape.insert(0, int(sketch.choice((1, 2, 3, 5, 7))))
    return sketch.emit(sketch.ops.broadcast_to(x.var, shape), x) if tuple(shape) != x.shape else None


Step = Callable[[Sketch], Node | None]


def row_reduce(sketch: Sketch) -> Node | None:
    """Add a reduction over the innermost axes."""
    return _reduce(sketch, column_reduces=False)


def column_reduce(sketch: Sketch) -> Node | None:
    """Add a reduction over the innermost axes, or any."""
    return _reduce(sketch, column_reduces=True)


def steps(reduce: Step) -> tuple[tuple[float, Step], ...]:
    """Return (relative frequency, step), with ``reduce`` as the reducing step."""
    return (
        (2.0, _unary_light),
        (2.5, _unary_heavy),
        (4.0, _binary),
        (3.5, reduce),
        (1.2, _reshape),
        (1.0, _transpose),
        (0.8, _slice),
        (0.8, _concat),
        (0.8, _broadcast),
        (1.0, _cast),
        (0.7, _compare),
        (0.8, _where),
        (0.3, _logical),
    )
