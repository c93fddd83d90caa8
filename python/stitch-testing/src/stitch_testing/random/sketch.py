# SPDX-License-Identifier: Apache-2.0
"""A random graph under construction: values with bounds, and the operators that may be added."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..reference.bounds import Bound
from ..reference.operators import is_float
from .front_end import FrontEnd

#: Greatest magnitude of a value. It is so far from overflow that fresh inputs do not overflow either.
_LIMIT = {"float32": 1e4, "float16": 200.0, "bfloat16": 1e4, "int32": 1e6}
#: Greatest mean width of the bounds, relative to the values. With wider bounds a comparison would find no fault.
_SHARPNESS = {"float32": 2e-3, "float16": 0.03, "bfloat16": 0.15}

_DIMS = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    13,
    16,
    17,
    31,
    32,
    33,
    64,
    97,
    100,
    127,
    128,
    129,
    255,
    257,
    384,
    509,
    768,
    1000,
    1024,
)
_LARGE_DIMS = (1031, 2048, 3001, 4096, 5003, 8192, 10007)


@dataclass
class Node:
    """A value of the graph: its variable, and its bounds on the generator's sample."""

    var: Any
    bound: Bound
    shape: tuple[int, ...]
    dtype: str
    used: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Sketch:
    """A growing graph. It accepts an operator only if the result is finite, bounded and well-conditioned."""

    def __init__(self, rng: np.random.Generator, front: FrontEnd, max_elements: int) -> None:
        self.rng = rng
        self.front = front
        self.max_elements = max_elements
        self.nodes: list[Node] = []
        self.operators: list[str] = []

    @property
    def ops(self) -> Any:
        """The constructors of operators' calls."""
        return self.front.ops

    @property
    def floats(self) -> tuple[str, ...]:
        """The float dtypes that values may have."""
        return self.front.floats

    @property
    def numbers(self) -> tuple[str, ...]:
        """The dtypes of numbers that values may have."""
        return (*self.front.floats, "int32")

    def const(self, value: Any, dtype: str) -> Any:
        """Make a constant, a scalar for a number."""
        return self.front.const(value, dtype)

    def add_input(self, var: Any, sample: np.ndarray) -> None:
        """Make a parameter of the function, with its value in the sample, available."""
        self.nodes.append(Node(var, self.front.sample(var, sample), sample.shape, str(sample.dtype)))

    def emit(self, expr: Any, *sources: Node) -> Node | None:
        """Add ``expr``, whose operands are ``sources``. Return None, without change, if its result is unsuitable."""
        inspected = self.front.inspect(expr)
        if math.prod(inspected.shape) > self.max_elements:
            return None  # before evaluating it: two vectors that broadcast can make gigabytes
        bound = self.front.evaluate(inspected.call)
        if not _acceptable(bound, inspected.dtype):
            return None
        var = self.front.bind(inspected.call, bound)
        for source in sources:
            source.used = True
        node = Node(var, bound, bound.value.shape, inspected.dtype)
        self.nodes.append(node)
        self.operators.append(inspected.name)
        return node

    def pick(self, dtypes: Sequence[str], where: Callable[[Node], bool] = lambda node: True) -> Node | None:
        """Pick a random value of one of ``dtypes``, preferably an unused or a late one."""
        fitting = [node for node in self.nodes if node.dtype in dtypes and where(node)]
        if not fitting:
            return None
        fresh = [node for node in fitting if not node.used]
        if fresh and self.rng.random() < 0.65:
            fitting = fresh
        weight = np.arange(1, len(fitting) + 1, dtype=np.float64)
        return fitting[self.rng.choice(len(fitting), p=weight / weight.sum())]

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]


def _acceptable(bound: Bound, dtype: str) -> bool:
    if dtype == "bool":
        # A comparison that depends on roundings everywhere decides nothing.
        return float(np.mean(bound.low != bound.high)) < 0.02
    value = bound.value.astype(np.float64)
    if not np.isfinite(value).all() or np.abs(value).max() > _LIMIT[dtype]:
        return False
    width = bound.high.astype(np.float64) - bound.low.astype(np.float64)
    if not is_float(dtype):
        return float(np.mean(width != 0)) < 0.02
    scale = float(np.sqrt(np.mean(value * value)))
    return (
        scale > 1e-3 and bool(np.isfinite(width).all()) and float(width.mean()) <= _SHARPNESS[dtype] * scale
    )


def random_shape(rng: np.random.Generator, max_elements: int) -> tuple[int, ...]:
    """Draw a shape of rank 1 to 5 with odd, prime, 1-sized and large extents and at most ``max_elements`` elements."""
    rank = int(rng.choice([1, 2, 3, 4, 5], p=[0.1, 0.35, 0.25, 0.2, 0.1]))
    budget = max(1, int(max_elements * float(rng.choice([1.0, 0.3, 0.05], p=[0.5, 0.3, 0.2]))))
    shape = []
    for _ in range(rank):
        choices = _DIMS + (_LARGE_DIMS if rank <= 2 and rng.random() < 0.3 else ())
        fitting = [dim for dim in choices if dim <= budget]
        dim = int(fitting[int(rng.integers(len(fitting)))])
        shape.append(dim)
        budget = max(1, budget // dim)
    rng.shuffle(shape)
    return tuple(shape)
