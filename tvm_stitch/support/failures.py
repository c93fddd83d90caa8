# SPDX-License-Identifier: Apache-2.0
"""Classify exceptions: a refusal, the failure of one scope, or an exception that no handler may keep.

A *refusal* says why a graph is not stitched. A *failure* of a step, of this package or of TVM, costs only the
step's scope. TVM keeps the scope's operators, the reason is recorded, and the rest of the model stays stitched.
Interrupts, exhausted memory and other ends of a program pass through. Every handler that is broader than one kind
of error calls :func:`reason_of`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from . import interrupts
from .errors import StitchError

logger = logging.getLogger(__name__)

LONGEST_TEXT = 400
"""Most characters of an error's text that are shown."""

_PACKAGE = str(Path(__file__).parents[1])
_FAULTS = (AssertionError, AttributeError, LookupError, NameError, TypeError, ZeroDivisionError)
# Lines of a C++ or Python trace, as TVM's errors begin with them.
_TRACE = re.compile(
    r"(Traceback \(most recent call last\)|Stack trace|\s*(\[bt\] )?\(?\d+\)?:? +\S*(tvm|_object\*|0x|\w+\()"
    r"|\s*File \"|\s*at /|\s*\d+: (tvm|std|_|0x|\w+::)|-{3,}|={3,})"
)
_SAID = re.compile(r"(?P<kind>[A-Za-z_][\w.]*(Error|Exception|Interrupt)): ?(?P<text>.*)")


class Refusal(ValueError):
    """A graph, or a part of it, is not stitched. The message is the reason that ``explain`` shows."""


def reraise_fatal(err: BaseException) -> None:
    """Raise an exception that no handler may keep: a pending interrupt, or ``err`` if it passes through.

    Exceptions that end the program and exhausted memory pass through.
    """
    interrupts.check()
    if not isinstance(err, Exception) or isinstance(err, (MemoryError, interrupts.Carried)):
        raise err


def raise_where_strict(err: Exception, what: str, strict: bool) -> None:
    """Raise a StitchError from a step's error in strict mode, or ``err`` itself if it passes through."""
    reraise_fatal(err)
    if isinstance(err, StitchError):
        raise err
    if strict:
        message = error_text(err) if isinstance(err, Refusal) else f"{type(err).__name__}: {error_text(err)}"
        raise StitchError(f"{what} cannot be stitched: {message}") from err


def reason_of(err: Exception, what: str, strict: bool = False, quiet: bool = False) -> str:
    """Return the reason why ``what`` is left to TVM, from the error of a step on it.

    Errors other than refusals are logged as warnings. With ``quiet``, only faults of this package are.

    Raises:
        StitchError: with ``strict``, for a fault of this package.
        BaseException: a pending interrupt, or ``err`` itself if it passes through.
    """
    reraise_fatal(err)
    if isinstance(err, Refusal):
        return error_text(err)
    reason = f"{type(err).__name__}: {error_text(err)}"
    if (position := fault_at(err)) is not None:
        reason = f"{reason} (a fault in tvm_stitch, at {position})"
        raise_where_strict(err, what, strict)
        logger.warning(
            "%s is left to TVM: %s; please report it with what tvm_stitch.explain says", what, reason
        )
    elif not quiet:
        logger.warning("%s is left to TVM: %s", what, reason)
    return reason


def fault_at(err: BaseException) -> str | None:
    """Return where this package raised a programming error, as ``"plan/gpu/tile.py:12"``, or None for other errors."""
    if not isinstance(err, _FAULTS):
        return None
    position, trace = None, err.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            position = f"{name[len(_PACKAGE) + 1 :]}:{trace.tb_lineno}"
        elif "<" not in name:  # a frame of TVM's C++ code has no file
            position = None
        trace = trace.tb_next
    return position


def error_text(err: BaseException | str, most: int = LONGEST_TEXT) -> str:
    """Return an error's message on one line, without traces and without the code that TVM prints below it.

    TVM's errors may begin with a trace of C++ and Python frames. The message follows, often on several lines.
    """
    text = str(err).replace("\0", "")
    if isinstance(err, KeyError) and len(err.args) == 1:
        text = f"no {err.args[0]!r}"
    lines = text.splitlines()
    traced = [i for i, line in enumerate(lines) if _TRACE.match(line)]
    messages = [i for i in range(traced[-1] if traced else len(lines), len(lines)) if _SAID.match(lines[i])]
    if messages:  # below the trace TVM writes "TVMError: " and the message
        lines = lines[messages[0] :]
        message = _SAID.match(lines[0])
        if message is not None and message["kind"].rsplit(".", 1)[-1] == type(err).__name__:
            lines[0] = message["text"]
    lines = [line.strip() for line in lines if line.strip() and not _TRACE.match(line)]
    text_of_lines = " ".join(_without_code(lines)) or type(err).__name__
    return text_of_lines if len(text_of_lines) <= most else f"{text_of_lines[: most - 4]} ..."


def _without_code(lines: list[str]) -> list[str]:
    """Return the lines before the program that TVM prints below its message.

    Errors of schedules give the reason after the program, followed by definitions of terms. The first line of it is
    kept.
    """
    reasons = [line for line in lines[1:] if line.startswith("Error message: ")]
    if reasons:
        return [lines[0], reasons[0]]
    for i, line in enumerate(lines):
        if i and re.match(r"(# from tvm|from tvm|@T\.|@I\.|@R\.|class Module|def \w+\(|primfn\()", line):
            return lines[:i]
    return lines
