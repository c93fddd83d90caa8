# SPDX-License-Identifier: Apache-2.0
"""Steps of the random-graph generator for Relax graphs only, among them operators that TVM alone does not compile.

A graph has them only if ``random_graph`` is called with ``more=True``. So a new step here leaves the graphs of all
seeds as they are that other tests name, and stock TVM compiles those.
"""

from __future__ import annotations

from .sketch import Node, Sketch
from .steps import Step


def _flip(sketch: Sketch) -> Node | None:
    x = sketch.pick((*sketch.numbers, "bool"), lambda node: len(node.shape) >= 1)
    return x and sketch.emit(sketch.ops.flip(x.var, int(sketch.rng.integers(len(x.shape)))), x)


def _pixel_shuffle(sketch: Sketch) -> Node | None:
    factor = int(sketch.choice((2, 2, 3, 4)))
    x = sketch.pick(sketch.numbers, lambda node: node.size % factor**2 == 0 and len(node.shape) < 5)
    if x is None:
        return None
    # Few values are images whose channels fit: the outer extents become channels.
    image = sketch.emit(sketch.ops.reshape(x.var, [factor**2, -1, x.shape[-1] if x.shape else 1]), x)
    return image and sketch.emit(sketch.ops.nn.pixel_shuffle(image.var, factor), image)


def _multiply_add(sketch: Sketch) -> Node | None:
    x = sketch.pick(sketch.numbers)
    if x is None:
        return None
    others = [sketch.pick((x.dtype,), lambda node: node.shape == x.shape) for _ in range(2)]
    y, z = (each or x for each in others)
    return sketch.emit(sketch.ops.ewise_fma(x.var, y.var, z.var), x, y, z)


RELAX_STEPS: tuple[tuple[float, Step], ...] = (
    (1.0, _flip),
    (1.0, _pixel_shuffle),
    (1.0, _multiply_add),
)
"""(relative frequency, step)."""
