# SPDX-License-Identifier: Apache-2.0
"""Grow seeded random memory-intensive graphs in any front end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

from ..reference.bounds import Bound
from .front_end import FrontEnd
from .grid_steps import GRID_STEPS, random_matrix
from .sketch import Node, Sketch, random_shape
from .steps import Step, column_reduce, row_reduce, steps

Level = Literal["row", "column", "grid"]
"""Axes that a graph reduces. ``"row"``: the innermost ones. ``"column"``: any. ``"grid"``: any, with row and column
reductions of the same data, chains of them, reduced values read along other axes, and unconnected subgraphs."""

LEVELS: tuple[Level, ...] = get_args(Level)


Argument = tuple[tuple[int, ...], str]
"""Shape and dtype of an argument."""


@dataclass(frozen=True)
class Graph(ABC):
    """A generated graph: ``mod["main"]`` takes tensors of ``arguments`` ((shape, dtype) each)."""

    seed: int
    mod: Any
    arguments: tuple[Argument, ...]
    operators: tuple[str, ...]
    outputs: int

    @property
    def description(self) -> str:
        """Return one line: seed, arguments, and the number of each operator."""
        arguments = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in self.arguments)
        counts = Counter(self.operators)
        operators = " ".join(f"{name}*{n}" if n > 1 else name for name, n in counts.items())
        return f"seed {self.seed}: ({arguments}) -> {self.outputs} outputs: {operators}"

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw fresh random inputs: floats in [-2, 2], integers in [-9, 9]."""
        return [draw(rng, shape, dtype) for shape, dtype in self.arguments]

    @abstractmethod
    def tolerance(self, inputs: Sequence[np.ndarray], half_arithmetic: bool = True) -> list[Bound]:
        """Return for every output the float64 reference and the least and greatest allowed values.

        ``half_arithmetic`` allows for sums of half types accumulated in those types.
        """


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Draw a random argument: floats in [-2, 2], integers in [-9, 9]."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype == "int32":
        return rng.integers(-9, 10, shape, dtype=np.int32)
    return rng.uniform(-2.0, 2.0, shape).astype(np.dtype(dtype))


def _arguments(rng: np.random.Generator, base: tuple[int, ...], dtype: str) -> list[Argument]:
    """Draw one tensor of ``base`` and up to three more that fit it."""
    arguments = [(base, dtype)]
    for _ in range(int(rng.integers(0, 4))):
        shape = base
        if rng.random() < 0.5:  # something to broadcast: a vector, a column, one scale a channel
            shape = tuple(1 if rng.random() < 0.4 else dim for dim in base)[int(rng.integers(0, len(base))) :]
        other = dtype if rng.random() < 0.8 else str(rng.choice(["bool", "int32", "float32"]))
        arguments.append((shape, other))
    return arguments


def _grow(sketch: Sketch, options: Sequence[tuple[float, Step]], wanted: int) -> None:
    """Add about ``wanted`` operators."""
    frequencies = np.array([frequency for frequency, _ in options])
    tries, start = 0, len(sketch.operators)
    while (have := len(sketch.operators) - start) < wanted and (tries < 8 * wanted or have < 3):
        tries += 1
        options[int(sketch.rng.choice(len(options), p=frequencies / frequencies.sum()))][1](sketch)


#: The steps of each level, with frequencies.
STEPS: Mapping[Level, tuple[tuple[float, Step], ...]] = {
    "row": steps(row_reduce),
    "column": steps(column_reduce),
    "grid": GRID_STEPS,
}


GraphType = TypeVar("GraphType", bound=Graph)


def grow(
    kind: type[GraphType],
    seed: int,
    front: FrontEnd,
    max_elements: int,
    level: Level,
    more_steps: Sequence[tuple[float, Step]] = (),
) -> GraphType:
    """Grow a graph of 3 to some 45 memory-intensive operators into ``front``. Equal arguments give equal graphs.

    Parameters
    ----------
    max_elements : the most elements that any value may have.
    level : the reduced axes, and the reads of results, as in :data:`Level`.
    more_steps : (relative frequency, step), in addition to those of the level.

    Raises
    ------
    ValueError : unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}: choose from {', '.join(LEVELS)}")
    rng = np.random.default_rng([seed, max_elements, LEVELS.index(level)])
    dtype = str(rng.choice(list(front.dtypes), p=list(front.dtypes.values())))
    parts = 1
    if level == "grid":
        parts = 2 if rng.random() < 0.25 else 1
    groups = []
    for _ in range(parts):
        matrix = level == "grid" and rng.random() < 0.7
        base = random_matrix(rng, max_elements) if matrix else random_shape(rng, max_elements)
        groups.append(_arguments(rng, base, dtype))
    arguments = [argument for group in groups for argument in group]
    sketch = Sketch(rng, front, max_elements)
    wanted = int(rng.integers(3, 41))
    grown: list[Node] = []
    with front.function(arguments) as params:
        waiting = iter(params)
        for group in groups:
            sketch.nodes = []  # subgraphs do not use each other's values
            for (shape, dtype), param in zip(group, waiting):
                sketch.add_input(param, draw(rng, shape, dtype))
            _grow(sketch, (*STEPS[level], *more_steps), max(3, wanted // parts))
            grown += sketch.nodes[len(group) :]
        results = [node for node in grown if not node.used]
        interior = [node for node in grown if node.used]
        if interior and rng.random() < 0.3:
            results.append(interior[int(rng.integers(len(interior)))])
        front.finish([node.var for node in results])
    return kind(seed, front.mod, tuple(arguments), tuple(sketch.operators), len(results))
