# SPDX-License-Identifier: Apache-2.0
"""A growing random case: its inputs, values and steps, and how varied it may be."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .bounded import FLOATS
from .build import Live, Unbuildable
from .case import Dim, Input, Step, evaluate
from .data import BFLOAT16

DTYPES = {
    "float32": 50, "float16": 9, "bfloat16": 7, "float64": 6, "int8": 5, "uint8": 5, "int16": 3,
    "uint16": 2, "int32": 6, "int64": 4, "uint32": 2, "bool": 3,
}  # fmt: skip
EXTENTS = [1, 1, 2, 2, 3, 4, 5, 7, 8, 8, 12, 16, 17, 31, 32, 33, 48, 64, 100, 128, 130]
DERIVED = ["n", "n", "n+1", "n//2", "n*2", "n//16+1", "n*m", "n-9", "n//4", "m+n", "n//16", "m", "n*3"]
TYPICAL = {"n": 23, "m": 5}


class Skip(Exception):
    """No value suits this choice."""


@dataclass(frozen=True)
class Profile:
    """Size and variety of cases.

    symbolic: share of cases with symbolic extents. elements: most elements of one value. steps, runs: most of each.
    targets: one is chosen for a case (None: the backend's own). rare: choices that a backend hardly supports.
    """

    symbolic: float = 0.35
    elements: int = 40_000
    steps: int = 14
    runs: int = 4
    targets: tuple[Any, ...] = (None,)
    rare: tuple[str, ...] = ()


class Grower:
    """A growing case, on which the choices of :mod:`choices` are made."""

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self.rng, self.profile = rng, profile
        self.symbols = self._symbols()
        self.live = Live(self.symbols)
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        weights = dict(DTYPES)
        if BFLOAT16 is None:
            weights.pop("bfloat16")
        self.dtype = rng.choices(list(weights), list(weights.values()))[0]
        self.fill = self._fill(self.dtype)
        self.pool: list[Dim] = self._extents()

    def _symbols(self) -> list[str]:
        if self.rng.random() >= self.profile.symbolic:
            return []
        return ["n", "m"] if self.rng.random() < 0.4 else ["n"]

    def _extents(self) -> list[Dim]:
        """Few extents, so that values meet."""
        rng = self.rng
        pool: list[Dim] = [rng.choice(EXTENTS) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.05:
            pool.append(0)
        if self.symbols:
            known = [d for d in DERIVED if "m" in self.symbols or "m" not in d]
            pool += [*self.symbols, *rng.sample(known, min(len(known), rng.randint(0, 3)))]
        return pool

    def _fill(self, dtype: str) -> str:
        floats = ["normal"] * 5 + ["positive", "special", "special", "ties", "wide"]
        return self.rng.choice(floats if dtype in FLOATS else ["small", "full", "positive"])

    # The methods that pickers use.
    def shape(self, value: int) -> list[Dim]:
        """Extents of a value."""
        return self.live.shapes[value]

    def dtype_of(self, value: int) -> str:
        """Dtype of a value, "tuple" for several results."""
        return self.live.dtypes[value]

    def pick(self, accept: Any = None) -> int:
        """Pick a value for which ``accept(value)`` holds, late ones more often.

        Raises:
            Skip: when there is none.
        """
        fitting = [
            v
            for v in range(len(self.live.values))
            if self.dtype_of(v) != "tuple" and (not accept or accept(v))
        ]
        if not fitting:
            raise Skip
        if self.rng.random() < 0.6:
            fitting = fitting[-4:]
        return self.rng.choice(fitting)

    def random_shape(self, rank: int | None = None) -> list[Dim]:
        """Return a shape of the case's extents."""
        rng = self.rng
        rank = rng.choices(range(7), [2, 10, 30, 28, 18, 8, 4])[0] if rank is None else rank
        for _ in range(20):
            shape: list[Dim] = [rng.choice(self.pool) if rng.random() < 0.85 else 1 for _ in range(rank)]
            if self.typical_size(shape) <= self.profile.elements // 4:
                return shape
            rank = max(1, rank - 1) if rng.random() < 0.3 else rank
        return [rng.choice([2, 3]) for _ in range(min(rank, 3))]

    def typical_size(self, shape: list[Dim]) -> int:
        """Count elements at typical sizes. Extents of 0 count as 1, since reductions over them have elements again."""
        sizes = {**TYPICAL, "min": min, "max": max}
        return int(np.prod([max(1, int(evaluate(d, sizes))) for d in shape], dtype="float64"))

    def add_input(self, shape: list[Dim], dtype: str | None = None, fill: str | None = None) -> int:
        """Add a parameter. Inputs come before steps, so values of steps would move up."""
        if self.steps:
            raise Skip
        dtype = dtype or self.dtype
        fill = fill or (self.fill if dtype == self.dtype else self._fill(dtype))
        self.inputs.append(Input(tuple(shape), dtype, fill, len(self.inputs)))
        self.live.add_input(shape, dtype)
        return len(self.inputs) - 1

    def source(self, shape: Sequence[Dim], dtype: str, fill: str | None = None) -> int:
        """Make a tensor of this shape: a constant if it is static, else a broadcast or declared one.

        Raises:
            Skip: when there is none.
        """
        same = [
            v for v in range(len(self.live.values)) if self.shape(v) == shape and self.dtype_of(v) == dtype
        ]
        if same and fill is None and self.rng.random() < 0.6:
            return self.rng.choice(same)
        if all(isinstance(d, int) for d in shape):
            attrs = {
                "shape": shape,
                "dtype": dtype,
                "fill": fill or self._fill(dtype),
                "seed": self.rng.randrange(10**6),
            }
            return self.add("const", (), attrs)
        if same and fill is None:
            return self.rng.choice(same)
        raise Skip

    def add(self, op: str, args: tuple[int, ...] | list[int], attrs: Mapping[str, Any] | None = None) -> int:
        """Add a step.

        Raises:
            Skip: when Relax refuses it or it is too large.
        """
        step = Step(op, tuple(args), dict(attrs or {}))
        try:
            number = self.live.add(step)
        except Unbuildable as error:
            raise Skip from error
        self.steps.append(step)
        if self.typical_size(self.shape(number)) > self.profile.elements:
            self.drop_last()
            raise Skip
        return number

    def drop_last(self) -> None:
        """Undo the last step."""
        self.steps.pop()
        for column in (self.live.values, self.live.shapes, self.live.dtypes):
            column.pop()
