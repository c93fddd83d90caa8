# SPDX-License-Identifier: Apache-2.0
"""Random cases: inputs, then steps that read earlier values, outputs, and sizes to run at."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import choices, choices_attention, choices_move, choices_network
from .bounded import FLOATS, Rules
from .build import Live, Unbuildable
from .case import Case, Dim, Inapplicable, Input, Step, evaluate, extent
from .choices import Skip
from .data import BFLOAT16, inputs_of
from .oracle import evaluate as evaluate_case

DTYPES = {
    "float32": 50, "float16": 9, "bfloat16": 7, "float64": 6, "int8": 5, "uint8": 5, "int16": 3,
    "uint16": 2, "int32": 6, "int64": 4, "uint32": 2, "bool": 3,
}  # fmt: skip
EXTENTS = [1, 1, 2, 2, 3, 4, 5, 7, 8, 8, 12, 16, 17, 31, 32, 33, 48, 64, 100, 128, 130]
DERIVED = ["n", "n", "n+1", "n//2", "n*2", "n//16+1", "n*m", "n-9", "n//4", "m+n", "n//16", "m", "n*3"]
SIZES = [
    0,
    1,
    2,
    3,
    5,
    7,
    9,
    11,
    13,
    16,
    17,
    19,
    23,
    31,
    32,
    33,
    37,
    47,
    48,
    64,
    65,
    80,
    97,
    128,
    160,
    193,
    257,
    500,
    1031,
]
PICKERS = {**choices.TABLE, **choices_move.TABLE, **choices_network.TABLE, **choices_attention.TABLE}
TYPICAL = {"n": 23, "m": 5}


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

    # What pickers use.
    def shape(self, value: int) -> list[Dim]:
        """Extents of a value."""
        return self.live.shapes[value]

    def dtype_of(self, value: int) -> str:
        """Dtype of a value, "tuple" for several results."""
        return self.live.dtypes[value]

    def pick(self, accept: Any = None) -> int:
        """Pick a value for which ``accept(value)`` holds; late ones more often.

        Raises:
            Skip: when there is none.
        """
        found = [
            v
            for v in range(len(self.live.values))
            if self.dtype_of(v) != "tuple" and (not accept or accept(v))
        ]
        if not found:
            raise Skip
        if self.rng.random() < 0.6:
            found = found[-4:]
        return self.rng.choice(found)

    def random_shape(self, rank: int | None = None) -> list[Dim]:
        """A shape of the case's extents."""
        rng = self.rng
        rank = rng.choices(range(7), [2, 10, 30, 28, 18, 8, 4])[0] if rank is None else rank
        for _ in range(20):
            shape: list[Dim] = [rng.choice(self.pool) if rng.random() < 0.85 else 1 for _ in range(rank)]
            if self.typical_size(shape) <= self.profile.elements // 4:
                return shape
            rank = max(1, rank - 1) if rng.random() < 0.3 else rank
        return [rng.choice([2, 3]) for _ in range(min(rank, 3))]

    def typical_size(self, shape: list[Dim]) -> int:
        """Elements at typical sizes; extents of 0 count as 1, since reductions over them have elements again."""
        sizes = {**TYPICAL, "min": min, "max": max}
        return int(np.prod([max(1, int(evaluate(d, sizes))) for d in shape], dtype="float64"))

    def add_input(self, shape: list[Dim], dtype: str | None = None, fill: str | None = None) -> int:
        """A new parameter; inputs come before steps, so that values of steps move up."""
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
        """A new step.

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


def generate(seed: int, profile: Profile) -> Case:
    """Generate the case of a seed."""
    for attempt in range(100):
        case = _attempt(random.Random(f"{seed}/{attempt}"), seed, profile)
        if case is not None:
            return case
    raise RuntimeError(f"no case of seed {seed}")


def _attempt(rng: random.Random, seed: int, profile: Profile) -> Case | None:
    grower = Grower(rng, profile)
    try:
        _inputs(grower)
    except (Skip, Unbuildable):
        grower.live.close()
        return None
    names = list(PICKERS)
    weights = [w * (0.05 if name in profile.rare else 1) for name, (w, _) in PICKERS.items()]
    wanted = rng.randint(1, profile.steps)
    for _ in range(wanted * 5):
        if len(grower.steps) >= wanted:
            break
        picker = PICKERS[rng.choices(names, weights)[0]][1]
        before = len(grower.steps)
        try:
            picker(grower)
        except Skip:
            while len(grower.steps) > before:
                grower.drop_last()
    if not grower.steps and rng.random() < 0.9:
        grower.live.close()
        return None
    case = _finish(grower, seed)
    runs = _runs(case, rng, profile)
    return case.but(sizes=tuple(runs)) if runs else None


def _inputs(grower: Grower) -> None:
    rng = grower.rng
    first = grower.random_shape()
    shapes = [first]
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.random()
        if kind < 0.35:
            shapes.append(list(first))
        elif kind < 0.7:  # broadcasts against the first
            shape = [d if rng.random() < 0.6 else 1 for d in first]
            shapes.append(shape[rng.randint(0, len(shape)) :] if rng.random() < 0.4 else shape)
        else:
            shapes.append(grower.random_shape())
    for shape in shapes:
        dtype = (
            grower.dtype if rng.random() < 0.85 else rng.choice(["float32", "int32", "bool", "int8", "uint8"])
        )
        grower.add_input(shape, dtype)
    if rng.random() < 0.3 and first:  # indices into an axis
        count = rng.choice(first)
        grower.add_input([rng.choice([*grower.pool, 3])], rng.choice(["int32", "int64"]), f"index:{count}")
    plain = {d for p in grower.inputs for d in p.shape}
    for symbol in grower.symbols:
        if symbol not in plain:  # an expression of a symbol needs an input that defines the symbol
            grower.add_input([symbol], rng.choice([grower.dtype, "float32"]))


def _finish(grower: Grower, seed: int) -> Case:
    rng = grower.rng
    grower.live.close()
    used = {a for s in grower.steps for a in s.args}
    total = len(grower.live.values)
    ends = [v for v in range(len(grower.inputs), total) if v not in used]
    outputs = [v for v in ends if rng.random() < 0.9] or ends or [0]
    if rng.random() < 0.15:
        outputs.append(rng.randrange(total))  # an inner value, an input or a constant
    if rng.random() < 0.04:
        outputs.append(rng.choice(outputs))
    rng.shuffle(outputs)
    count = len(grower.steps)
    cuts = (
        sorted({rng.randint(1, count) for _ in range(rng.choice([1, 1, 2]))})
        if count and rng.random() < 0.15
        else []
    )
    inner = None
    if not grower.symbols and not cuts and count > 3 and rng.random() < 0.1:
        begin = rng.randint(0, count - 2)
        inner = (begin, rng.randint(begin + 1, count))
        inside = grower.live.dtypes[len(grower.inputs) + inner[0] : len(grower.inputs) + inner[1]]
        reads = {grower.dtype_of(a) for s in grower.steps[inner[0] : inner[1]] for a in s.args}
        inner = None if "tuple" in inside or "tuple" in reads else inner
    return Case(
        inputs=tuple(grower.inputs),
        steps=tuple(grower.steps),
        outputs=tuple(outputs),
        as_tuple=rng.random() < 0.3,
        cuts=tuple(cuts),
        plain=rng.random() < 0.08,
        inner=inner,
        seed=seed,
        config=_config(rng),
        target=rng.choice(grower.profile.targets),
    )


def _config(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.75:
        return {}
    choices: list[tuple[str, list[Any]]] = [
        ("max_operators", [1, 2, 5]),
        ("max_arguments", [2, 3, 6]),
        ("epilogues", [False]),
        ("horizontal_fusion", [False]),
        ("clusters", [False]),
        ("grid_barriers", [False]),
        ("multiprocessors", [1, 7, 33]),
    ]
    return {name: rng.choice(values) for name, values in rng.sample(choices, rng.choice([1, 1, 2]))}


def _runs(case: Case, rng: random.Random, profile: Profile) -> list[dict[str, int]]:
    """Return sizes at which the case is valid."""
    symbols = case.symbols
    if not symbols:
        return [{}] if _applies(case, {}, profile) else []
    wanted = profile.runs
    found: list[dict[str, int]] = []
    small, large = SIZES[:3], SIZES[10:]
    for attempt in range(10 * wanted):
        source = small if attempt % 5 == 1 else (large if attempt % 2 else SIZES)
        sizes = {s: rng.choice(source) for s in symbols}
        if len(symbols) > 1 and rng.random() < 0.5:
            sizes[symbols[1]] = rng.choice(SIZES[:9])
        if sizes not in found and _applies(case, sizes, profile):
            found.append(sizes)
        if len(found) == wanted:
            break
    return found if any(min(s.values()) > 1 for s in found) else []


def _applies(case: Case, sizes: dict[str, int], profile: Profile) -> bool:
    trial = case.but(sizes=(sizes,))
    try:
        if any(
            np.prod([max(1, extent(d, sizes)) for d in p.shape], dtype="float64") > 4 * profile.elements
            for p in case.inputs
        ):
            return False
        values = evaluate_case(trial, 0, inputs_of(trial, 0), Rules())
    except Inapplicable:
        return False
    sizes_of = [part.data.size for v in values for part in (v if isinstance(v, tuple) else (v,))]
    return max(sizes_of, default=0) <= 4 * profile.elements
