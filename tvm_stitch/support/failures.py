# SPDX-License-Identifier: Apache-2.0
"""What an exception means: a refusal, the failure of one scope, or nothing that anyone here may keep.

A *refusal* says why a graph is not stitched. A *failure* of a step, ours or TVM's, costs the scope that the step worked
on: TVM keeps its operators, the reason is recorded, and the rest of the model stays stitched. Interrupts, exhausted
memory and whatever else ends a program pass through. Every handler that is broader than one kind of error asks
:func:`reason_of`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from . import interrupts
from .errors import StitchError

logger = logging.getLogger(__name__)

LONGEST_TEXT = 400
"""Characters of an error's text that are shown."""

_PACKAGE = str(Path(__file__).parents[1])
_FAULTS = (AssertionError, AttributeError, LookupError, NameError, TypeError, ZeroDivisionError)
# Lines of a trace, C++ or Python, as TVM's errors begin with them.
_TRACE = re.compile(
    r"(Traceback \(most recent call last\)|Stack trace|\s*(\[bt\] )?\(?\d+\)?:? +\S*(tvm|_object\*|0x|\w+\()"
    r"|\s*File \"|\s*at /|\s*\d+: (tvm|std|_|0x|\w+::)|-{3,}|={3,})"
)
_SAID = re.compile(r"(?P<kind>[A-Za-z_][\w.]*(Error|Exception|Interrupt)): ?(?P<text>.*)")


class Refusal(ValueError):
    """A graph, or a part of one, is not stitched; the message is the reason that ``explain`` shows."""


class ScopeFailed(Exception):
    """A step on one scope failed, with the error that is the cause.

    Args:
        scope: what names it among the scopes to exclude.
        name: what it is called in reports.
    """

    def __init__(self, scope: str, name: str):
        super().__init__(scope, name)
        self.scope, self.name = scope, name

    def reason(self, strict: bool) -> str:
        """Why the scope is left to TVM.

        Raises:
            StitchError: with ``strict``.
            BaseException: the cause, where it passes through.
        """
        assert isinstance(self.__cause__, Exception)
        raise_where_strict(self.__cause__, self.name, strict)
        return reason_of(self.__cause__, self.name)


def reraise_fatal(err: BaseException) -> None:
    """Raise what no handler may keep: an interrupt that has come meanwhile, or ``err`` if it passes through.

    That is the end of the program, and memory that is not to be had.
    """
    interrupts.check()
    if not isinstance(err, Exception) or isinstance(err, (MemoryError, interrupts.Carried)):
        raise err


def raise_where_strict(err: Exception, what: str, strict: bool) -> None:
    """In strict mode, a StitchError from what a step on ``what`` raised; ``err`` itself where it passes through."""
    reraise_fatal(err)
    if isinstance(err, StitchError):
        raise err
    if strict:
        said = error_text(err) if isinstance(err, Refusal) else f"{type(err).__name__}: {error_text(err)}"
        raise StitchError(f"{what} cannot be stitched: {said}") from err


def reason_of(err: Exception, what: str, strict: bool = False, quiet: bool = False) -> str:
    """Why ``what`` is left to TVM, from what a step on it raised.

    Anything but a refusal is logged as a warning; with ``quiet``, only what is a fault of this package.

    Raises:
        StitchError: with ``strict``, for a fault of this package.
        BaseException: an interrupt that has come meanwhile, or ``err`` itself where it passes through.
    """
    reraise_fatal(err)
    if isinstance(err, Refusal):
        return error_text(err)
    reason = f"{type(err).__name__}: {error_text(err)}"
    if (place := fault_at(err)) is not None:
        reason = f"{reason} (a fault in tvm_stitch, at {place})"
        raise_where_strict(err, what, strict)
        logger.warning(
            "%s is left to TVM: %s; please report it with what tvm_stitch.explain says", what, reason
        )
    elif not quiet:
        logger.warning("%s is left to TVM: %s", what, reason)
    return reason


def fault_at(err: BaseException) -> str | None:
    """Where in this package a programming error was raised, as ``"plan/gpu/tile.py:12"``; None for all else."""
    if not isinstance(err, _FAULTS):
        return None
    place, trace = None, err.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            place = f"{name[len(_PACKAGE) + 1 :]}:{trace.tb_lineno}"
        elif "<" not in name:  # a frame of TVM's C++ code has no file
            place = None
        trace = trace.tb_next
    return place


def error_text(err: BaseException | str, most: int = LONGEST_TEXT) -> str:
    """What an error says is wrong, on one line: without traces, and without the code that TVM prints beneath.

    TVM's errors may begin with a trace of C++ and Python frames; what went wrong is below, often on several lines.
    """
    text = str(err).replace("\0", "")
    if isinstance(err, KeyError) and len(err.args) == 1:
        text = f"no {err.args[0]!r}"
    lines = text.splitlines()
    traced = [i for i, line in enumerate(lines) if _TRACE.match(line)]
    said = [i for i in range(traced[-1] if traced else len(lines), len(lines)) if _SAID.match(lines[i])]
    if said:  # below the trace TVM writes "TVMError: what is wrong"
        lines = lines[said[0] :]
        found = _SAID.match(lines[0])
        if found is not None and found["kind"].rsplit(".", 1)[-1] == type(err).__name__:
            lines[0] = found["text"]
    lines = [line.strip() for line in lines if line.strip() and not _TRACE.match(line)]
    told = " ".join(_without_code(lines)) or type(err).__name__
    return told if len(told) <= most else f"{told[: most - 4]} ..."


def _without_code(lines: list[str]) -> list[str]:
    """Return the lines before the program that TVM prints beneath what it says.

    Errors of schedules give the reason behind the program, with definitions of its words; of these its first line.
    """
    reasons = [line for line in lines[1:] if line.startswith("Error message: ")]
    if reasons:
        return [lines[0], reasons[0]]
    for i, line in enumerate(lines):
        if i and re.match(r"(# from tvm|from tvm|@T\.|@I\.|@R\.|class Module|def \w+\(|primfn\()", line):
            return lines[:i]
    return lines
