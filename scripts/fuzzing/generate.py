# SPDX-License-Identifier: Apache-2.0
"""Random cases: inputs, then steps that read earlier values, outputs, and sizes to run at."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from . import choices, choices_attention, choices_move, choices_network
from .bounded import Rules
from .build import Unbuildable
from .case import Case, Inapplicable, extent
from .data import inputs_of
from .grower import Grower, Profile, Skip
from .oracle import evaluate as evaluate_case

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
    runs: list[dict[str, int]] = []
    small, large = SIZES[:3], SIZES[10:]
    for attempt in range(10 * wanted):
        source = small if attempt % 5 == 1 else (large if attempt % 2 else SIZES)
        sizes = {s: rng.choice(source) for s in symbols}
        if len(symbols) > 1 and rng.random() < 0.5:
            sizes[symbols[1]] = rng.choice(SIZES[:9])
        if sizes not in runs and _applies(case, sizes, profile):
            runs.append(sizes)
        if len(runs) == wanted:
            break
    return runs if any(min(s.values()) > 1 for s in runs) else []


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
