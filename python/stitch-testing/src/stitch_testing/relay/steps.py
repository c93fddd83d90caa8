# SPDX-License-Identifier: Apache-2.0
"""Steps of the random-graph generator for Relay graphs only: padding, take, softmax, matmuls."""

from __future__ import annotations

import numpy as np

from ..random.sketch import Node, Sketch
from ..random.steps import Step


def _pad(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers, lambda node: 1 <= len(node.shape) <= 4)
    if x is None:
        return None
    widths = [
        (int(sketch.rng.integers(0, 4)), int(sketch.rng.integers(0, 4)))
        if sketch.rng.random() < 0.6
        else (0, 0)
        for _ in x.shape
    ]
    if not any(before or after for before, after in widths):
        return None
    value = float(sketch.choice([0.0, 0.0, 1.0, -2.0]))
    return sketch.emit(sketch.ops.pad(x.var, widths, value), x)


def _take(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers, lambda node: len(node.shape) >= 1)
    if x is None:
        return None
    axis = int(sketch.rng.integers(len(x.shape)))
    extent = x.shape[axis]
    indices = sketch.pick(("int32",), lambda node: 1 <= len(node.shape) <= 5 - len(x.shape) and node is not x)
    if indices is not None and sketch.rng.random() < 0.6:  # take clips computed indices out of range
        return sketch.emit(sketch.ops.take(x.var, indices.var, axis=axis, mode="clip"), x, indices)
    count = int(sketch.choice([1, 2, 5, 16, 33]))
    places = sketch.const(sketch.rng.integers(0, extent, count), "int32")
    return sketch.emit(sketch.ops.take(x.var, places, axis=axis, mode="clip"), x)


def _softmax(sketch: Sketch) -> Node | None:
    x = sketch.pick(("float32",), lambda node: len(node.shape) >= 1 and node.size > 1)
    if x is None:
        return None
    rank = len(x.shape)
    axis = rank - 1 if sketch.rng.random() < 0.8 else int(sketch.rng.integers(rank))
    return sketch.emit(sketch.ops.softmax(x.var, axis=axis), x) if x.shape[axis] > 1 else None


def _matmul(sketch: Sketch) -> Node | None:
    x = sketch.pick(("float32",), lambda node: len(node.shape) in (2, 3) and 2 <= node.shape[-1] <= 1100)
    if x is None:
        return None
    inner, batched = x.shape[-1], len(x.shape) == 3
    multiply = sketch.ops.batch_matmul if batched else sketch.ops.dense

    def fits(node: Node) -> bool:
        if node is x or len(node.shape) != len(x.shape):
            return False
        return node.shape[:2] == (x.shape[0], inner) if batched else node.shape[1] == inner

    other = sketch.pick(("float32",), fits)
    if other is not None and sketch.rng.random() < 0.5:
        return sketch.emit(multiply(x.var, other.var), x, other)
    width = int(sketch.choice([1, 4, 7, 16, 33]))
    shape = (x.shape[0], inner, width) if batched else (width, inner)
    if np.prod(shape) > sketch.max_elements:
        return None
    weight = sketch.const(sketch.rng.standard_normal(shape) / np.sqrt(inner), "float32")
    return sketch.emit(multiply(x.var, weight), x)


RELAY_STEPS: tuple[tuple[float, Step], ...] = (
    (0.6, _pad),
    (0.6, _take),
    (0.5, _softmax),
    (0.4, _matmul),
)
"""(relative frequency, step)."""
