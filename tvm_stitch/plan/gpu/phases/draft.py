# SPDX-License-Identifier: Apache-2.0
"""A stage in the making, while operators are still being placed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ....graph.ir import Operator
from ...slices import Cut, Slice, aligned_slice


class Draft:
    """A stage in the making. Its roots change while operators are placed, and its alignment with them."""

    def __init__(self, piece: Slice):
        self.piece = piece
        self.joining: tuple[Operator, ...] = ()  # roots that are not aligned yet
        self.storing: frozenset[Operator] = frozenset()
        self.replicated = False
        self.phase, self.domain = piece.phase, piece.domain

    @property
    def roots(self) -> tuple[Operator, ...]:
        return (*self.piece.roots, *self.joining)

    @property
    def cross_row(self) -> frozenset[Operator]:
        return self.piece.cross_row

    @property
    def stored(self) -> frozenset[Operator]:
        return self.piece.stored | self.storing

    def join(self, root: Operator, stored: bool) -> None:
        """Take in a root that is aligned with the rest later."""
        self.joining = (*self.joining, root)
        if stored:
            self.storing = self.storing | {root}

    def become(self, piece: Slice) -> None:
        """Replace the stage by one with other roots."""
        self.piece, self.joining, self.storing = piece, (), frozenset()

    def settle(self, cut: Cut) -> None:
        """Align the roots that joined."""
        if self.joining:
            self.become(self.with_roots(cut, self.roots, self.cross_row, self.stored))

    def with_roots(
        self,
        cut: Cut,
        roots: Sequence[Operator],
        cross_row: Collection[Operator],
        stored: Collection[Operator],
    ) -> Slice:
        """Return the stage with these roots.

        Raises:
            Misaligned: when its domain does not serve them all.
        """
        choices, dominant = self.piece.alignment.choices, self.piece.dominant
        return aligned_slice(
            cut, choices, self.phase, self.domain, roots, cross_row, stored, dominant=dominant
        )

    def replicate(self) -> None:
        """Let every block evaluate the stage."""
        self.replicated = True

    def finished(self, phase: int) -> Slice:
        """Return the resulting stage, in a phase of this number."""
        return replace(self.piece, phase=phase, replicated=self.replicated)
