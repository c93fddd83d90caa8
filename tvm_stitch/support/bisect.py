# SPDX-License-Identifier: Apache-2.0
"""Find which of many units make a step fail that works on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Unit = TypeVar("Unit")


def bisect(
    units: Sequence[Unit], attempt: Callable[[Sequence[Unit]], Exception | None]
) -> dict[Unit, Exception]:
    """Return the units that have to be left out for a step to work, each with the error that it makes.

    Units are added to those that work, all at once, then in halves where that fails: for few culprits the step is tried
    about twice the logarithm of ``len(units)`` times for each.

    Args:
        units: in the order in which they are tried.
        attempt: tries the step with some of the units, in that order; gives the error, or None where it worked. It must
            work with none of them.
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
