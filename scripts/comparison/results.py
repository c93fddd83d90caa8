# SPDX-License-Identifier: Apache-2.0
"""The numbers of a comparison as plain data: one record for each variant, and the facts needed to read them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Seconds: the median over blocks of calls, and the least and the greatest of the blocks."""

    median: float
    least: float
    most: float

    @property
    def milliseconds(self) -> tuple[float, float, float]:
        """Return the least, the median and the greatest in milliseconds."""
        return 1e3 * self.least, 1e3 * self.median, 1e3 * self.most

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True)
class Kernels:
    """The launches of one call: kernels without and with a contraction, and the bytes that the former move."""

    memory_intensive: int
    compute_intensive: int
    bytes_moved: int
    external: int = 0

    @property
    def total(self) -> int:
        """Count all kernels, including calls of library functions."""
        return self.memory_intensive + self.compute_intensive + self.external


@dataclass
class Record:
    """The results of one variant. They are None if it failed (``problem`` says how) or was not measured.

    ``seconds`` is one call of the whole workload, ``memory_seconds`` the sum over its memory-intensive kernels.
    ``error`` is the largest absolute difference from the float64 reference. ``tuning_seconds`` and ``trials`` are those
    of the variant's tuning records, including resumed runs.
    """

    name: str
    title: str
    kernels: Kernels | None = None
    seconds: Spread | None = None
    memory_seconds: Spread | None = None
    compile_seconds: float | None = None
    tuning_seconds: float = 0.0
    trials: int = 0
    error: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A workload, its variants, and the disclosure: statements and facts that belong to every figure."""

    workload: str
    target: str
    records: Sequence[Record]
    facts: Mapping[str, str]
    statements: Sequence[str] = field(default_factory=tuple)

    def record(self, name: str) -> Record | None:
        """Return the record of the variant of that name."""
        return next((record for record in self.records if record.name == name), None)

    def to_json(self) -> str:
        """Write the comparison as JSON text: times in seconds, sizes in bytes, an infinite error as null."""
        return json.dumps(_plain(asdict(self)), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
