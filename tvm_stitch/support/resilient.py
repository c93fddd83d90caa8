# SPDX-License-Identifier: Apache-2.0
"""Run a step again without the units, such as stitch scopes, that make it fail.

This is the only mechanism of its kind. A step works on many units at once: it partitions operators, merges functions,
or generates code. If the step says which units failed, they are excluded. Otherwise it runs with parts of the units, in
halves, until those are found that make it fail. An error that is gone in a second run without the pass context's
instruments was an instrument's, and is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from .bisect import bisect
from .errors import StitchError
from .failures import raise_where_strict, reason_of, reraise_fatal
from .pass_context import changed, instruments

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Reasons: TypeAlias = tuple[tuple[str, str], ...]
"""Names, as reports show them, each with the reason why it is excluded."""


class UnitsFailed(Exception):
    """A step failed because of units that it knows.

    Args:
        reasons: by unit, why it failed.
    """

    def __init__(self, reasons: Mapping[Any, Reasons]):
        super().__init__(reasons)
        self.reasons = reasons


def resilient(
    step: Callable[[Mapping[Unit, Reasons]], Result],
    units: Callable[[Mapping[Unit, Reasons]], Mapping[Unit, str]],
    *,
    strict: bool,
    because: str = "",
    what: str = "a scope",
    excluded: Mapping[Unit, Reasons] | None = None,
    otherwise: Callable[[Exception], Result] | None = None,
) -> Result:
    """Return the result of a step, with the fewest units excluded that make it fail.

    Args:
        step: takes the excluded units with the reasons. It raises :class:`UnitsFailed`, or any other error.
        units: returns the units that a failed step worked on, with their names, given the excluded units.
        strict: whether to raise instead of excluding units.
        because: precedes the reasons of units that are found by trying.
        what: the subject of an error in strict mode.
        excluded: units that are excluded in any case.
        otherwise: returns the result of a step that fails without any unit. None: its error is raised.

    Raises:
        StitchError: with ``strict``, if there are such units.
        Exception: the step's error, if an instrument of the pass context raised it, or if it must not be kept. Also
            if the step fails without any unit.
    """
    left = dict(excluded or {})
    while True:
        try:
            return step(left)
        except UnitsFailed as err:
            if err.reasons.keys() <= left.keys():
                raise
            left |= err.reasons
        except Exception as err:
            names = dict(units(left))
            culprits = _culprits(step, left, list(names), err, strict, what)
            if culprits is None:
                if otherwise is None:
                    raise
                return otherwise(err)
            if not culprits:
                return step(left)
            start = f"{because}: " if because else ""
            for unit, error in culprits.items():
                left[unit] = ((names[unit], start + reason_of(error, names[unit])),)


def _culprits(
    step: Callable[[Mapping[Unit, Reasons]], Any],
    left: Mapping[Unit, Reasons],
    units: Sequence[Unit],
    err: Exception,
    strict: bool,
    what: str,
) -> dict[Unit, Exception] | None:
    """Return the units that make a step fail, each with its error, or None if it fails without any."""

    def attempt(kept: Sequence[Unit]) -> None:
        chosen = set(kept)
        try:
            step({**left, **{unit: () for unit in units if unit not in chosen}})
        except UnitsFailed:
            pass  # these are found when the step runs again

    raise_if_of_instruments(err, lambda: attempt(units))
    if _failure(lambda: attempt([])) is not None:
        return None
    raise_where_strict(err, what, strict)
    return bisect(units, lambda kept: _failure(lambda: attempt(kept)))


def raise_if_of_instruments(err: Exception, step: Callable[[], Any]) -> None:
    """Raise the error of a step again unless the step itself causes it.

    Args:
        err: the step's error.
        step: runs the step again. It is called only if the pass context has instruments, without them.

    Raises:
        Exception: ``err``, if an instrument of the pass context raised it, or if it passes through.
    """
    reraise_fatal(err)
    if isinstance(err, StitchError) or (instruments() and _failure(step) is None):
        raise err


def _failure(step: Callable[[], Any]) -> Exception | None:
    """Return the error of a step that runs without the pass context's instruments, or None if it works."""
    try:
        with changed([]):
            step()
    except Exception as err:
        reraise_fatal(err)
        return err
    return None
