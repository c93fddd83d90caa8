# SPDX-License-Identifier: Apache-2.0
"""What a count of kernels says, whatever the front end and however it was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: What tells a contraction by name, for matrix-vector products: as loops they look like a weighted sum.
CONTRACTION_NAMES = ("matmul", "dense", "conv", "einsum", "gemv", "linear", "bmm")

Kind = Literal["memory", "compute", "external"]


@dataclass(frozen=True)
class KernelCount:
    """Kernels launched by one call, in launch order, repeated as often as launched: each its name and kind.

    ``compute`` kernels belong to a PrimFunc with a contraction (matmul, convolution), whatever is fused into
    it; ``external`` ones are calls of library functions (a sort, a BLAS); the rest is memory-intensive.
    """

    launches: tuple[tuple[str, Kind], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(name for name, _ in self.launches)

    @property
    def total(self) -> int:
        """All kernels."""
        return len(self.launches)

    @property
    def memory_intensive(self) -> int:
        """Kernels without a contraction."""
        return self._of("memory")

    @property
    def compute_intensive(self) -> int:
        """Kernels of PrimFuncs with a contraction."""
        return self._of("compute")

    @property
    def external(self) -> int:
        """Calls of library functions."""
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
