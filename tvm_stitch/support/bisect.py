# SPDX-License-Identifier: Apache-2.0
"""Bisection: find the units that make a step fail which runs on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Unit = TypeVar("Unit")


def bisect(
    units: Sequence[Unit], attempt: Callable[[Sequence[Unit]], Exception | None]
) -> dict[Unit, Exception]:
    """Return the units that have to be left out for a step to succeed, each with its error.

    All units are tried at once, then halves of the failing groups. Units that succeed stay in. A single culprit
    takes about twice the logarithm of ``len(units)`` attempts.

    Args:
        units: the units, in the order in which they are tried.
        attempt: runs the step with some of the units, in that order. It returns the error, or None on success. It
            must succeed without any unit.
    """
    working: list[Unit] = []
    culprits: dict[Unit, Exception] = {}

    def add(group: Sequence[Unit]) -> None:
        chosen = {*working, *group}
        err = attempt([u for u in units if u in chosen])
        if err is None:
            working.extend(group)
        elif len(group) == 1:
            culprits[group[0]] = err
        else:
            middle = len(group) // 2
            add(group[:middle])
            add(group[middle:])

    if units:
        add(units)
    return culprits
