# SPDX-License-Identifier: Apache-2.0
"""The result of counting kernels, for all front ends and ways to count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# Words in names of contractions, for matrix-vector products, whose loops look like a weighted sum.
CONTRACTION_NAMES = ("matmul", "dense", "conv", "einsum", "gemv", "linear", "bmm")

Kind = Literal["memory", "compute", "external"]


@dataclass(frozen=True)
class KernelCount:
    """The name and kind of each kernel launched by one call, in launch order, repeated as often as launched.

    ``compute`` kernels belong to a PrimFunc with a contraction (matmul, convolution), including operators fused
    into it. ``external`` ones are calls of library functions (a sort, a BLAS). The rest is memory-intensive.
    """

    launches: tuple[tuple[str, Kind], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(name for name, _ in self.launches)

    @property
    def total(self) -> int:
        """Number of all kernels."""
        return len(self.launches)

    @property
    def memory_intensive(self) -> int:
        """Number of kernels without a contraction."""
        return self._of("memory")

    @property
    def compute_intensive(self) -> int:
        """Number of kernels of PrimFuncs with a contraction."""
        return self._of("compute")

    @property
    def external(self) -> int:
        """Number of calls of library functions."""
        return self._of("external")

    def names_of(self, kind: Kind) -> frozenset[str]:
        """Return the names of the kernels of one kind."""
        return frozenset(name for name, own in self.launches if own == kind)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and names as JSON-able data."""
        return {
            "total": self.total,
            "memory_intensive": self.memory_intensive,
            "compute_intensive": self.compute_intensive,
            "external": self.external,
            "names": list(self.names),
        }

    def _of(self, kind: Kind) -> int:
        return sum(own == kind for _, own in self.launches)
