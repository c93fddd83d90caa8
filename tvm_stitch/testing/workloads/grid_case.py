# SPDX-License-Identifier: Apache-2.0
"""A workload whose inputs any array library can draw on its device, from the distribution of each argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np

from .case import Case, case_of
from .specs import Body, Spec


@dataclass(frozen=True)
class Domain:
    """The distribution of an argument's elements, so that any array library can draw them on its device.

    ``"normal"``: mean ``low``, standard deviation ``high``. ``"uniform"``: [low, high). ``"integer"``: low to high - 1.
    """

    kind: Literal["normal", "uniform", "integer"] = "normal"
    low: float = 0.0
    high: float = 1.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw an array of ``shape`` in float32 (int64 for ``"integer"``)."""
        if self.kind == "normal":
            drawn = rng.standard_normal(shape, dtype=np.float32) * np.float32(self.high) + np.float32(
                self.low
            )
            return np.asarray(drawn, np.float32)
        if self.kind == "uniform":
            return np.asarray(rng.uniform(self.low, self.high, shape), np.float32)
        return rng.integers(int(self.low), int(self.high), shape)


NORMAL = Domain()
POSITIVE = Domain("uniform", 0.5, 2.0)


@dataclass(frozen=True)
class GridCase(Case):
    """A :class:`Case` with the distribution of each argument: large ones are drawn on the device."""

    domains: tuple[Domain, ...] = field(default=())

    @property
    def label(self) -> str:
        """Return the name and the sizes, since one workload may have several sizes."""
        return f"{self.name}<{','.join(str(size) for size in self.sizes.values())}>"


def grid_case_of(
    name: str,
    arguments: Sequence[tuple[Spec, Domain]],
    results: Sequence[Spec],
    body: Body,
    *,
    sizes: Mapping[str, int],
    stock_kernels: int,
    longest: int = 1,
) -> GridCase:
    """Assemble a case. ``longest`` is the length of its longest sum that no division makes small again."""
    case = case_of(
        name,
        [(spec, domain.draw) for spec, domain in arguments],
        results,
        body,
        stock_kernels=stock_kernels,
        sizes=sizes,
        # The error of a sequential sum of n numbers of magnitude 1 is about 3e-8 n. The limit is 7 times as large.
        tolerance={"float32": (2e-5, max(2e-5, 2e-7 * longest))},
    )
    return as_grid_case(case, [domain for _, domain in arguments])


def as_grid_case(case: Case, domains: Sequence[Domain]) -> GridCase:
    return GridCase(**{f.name: getattr(case, f.name) for f in fields(case)}, domains=tuple(domains))
