# SPDX-License-Identifier: Apache-2.0
"""Phases of the pipeline: rows of passes with their conditions and their order, checked, run and printed.

The rows themselves are in ``pipeline.py``. A row claims in ``after`` which rows must have run before it.
:func:`passes_of` makes the passes. A test checks the claims for many targets and options.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from ..context import CompileContext
from ..support.module_pass import named
from .dump import Dump


@dataclass(frozen=True)
class Condition:
    """The condition of a row: a test of the target and the options, and the test in words."""

    text: str
    holds: Callable[[CompileContext], bool]

    def __and__(self, other: Condition) -> Condition:
        """Return the condition that both conditions hold."""
        return Condition(f"{self.text}, {other.text}", lambda c: self.holds(c) and other.holds(c))

    def __or__(self, other: Condition) -> Condition:
        """Return the condition that at least one of the conditions holds."""
        return Condition(f"{self.text} or {other.text}", lambda c: self.holds(c) or other.holds(c))


ALWAYS = Condition("", lambda _: True)


@dataclass(frozen=True)
class Row:
    """One pass of a phase.

    Attributes:
        name: the name that instruments of TVM see. The instances of one pass have different names. The text after a
            dot says what the instance is for.
        make: makes the pass.
        what: one sentence that says what the pass does.
        when: the condition under which the pass runs.
        after: rows, or whole phases, that must have run before, each with the reason.
    """

    name: str
    make: Callable[[CompileContext], Any]
    what: str
    when: Condition = ALWAYS
    after: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """Rows that run in the order in which they are listed.

    Attributes:
        name: unique among phases and rows.
        what: one sentence that says what the phase is for.
        rows: the passes.
        together: makes one pass of the rows' passes, for a phase that is run again without scopes that fail. If it is
            None, the passes run one after the other.
    """

    name: str
    what: str
    rows: tuple[Row, ...]
    together: Callable[[CompileContext, list[Any]], Any] | None = None

    def running(self, context: CompileContext) -> list[Row]:
        """Return the rows that run for a target and its options."""
        return [row for row in self.rows if row.when.holds(context)]


def passes_of(
    phases: Sequence[Phase],
    context: CompileContext,
    dump: Dump | None = None,
    before_each: tvm.transform.Pass | None = None,
) -> list[tvm.transform.Pass]:
    """Return the passes of phases for a target and its options.

    Args:
        phases: in the order in which they run.
        context: the target and the options.
        dump: the phases and passes after which the module is written to a file.
        before_each: a pass that runs in front of each row, or of all rows that one pass is made of.
    """
    passes: list[Any] = []
    for phase in phases:
        passes += _passes_of_phase(phase, context, dump, before_each)
    return passes


def _passes_of_phase(
    phase: Phase, context: CompileContext, dump: Dump | None, before_each: tvm.transform.Pass | None
) -> list[tvm.transform.Pass]:
    passes: list[Any] = []
    for row in phase.running(context):
        if before_each is not None and phase.together is None:
            passes.append(before_each)
        passes.append(named(row.make(context), row.name))
        if dump is not None and dump.asks_for(row.name):
            passes.append(dump.after(row.name))
    if phase.together is not None:
        passes = [phase.together(context, passes)]
        passes = passes if before_each is None else [before_each, *passes]
    if dump is not None and dump.asks_for(phase.name):
        passes.append(dump.after(phase.name))
    return passes


def numbers_of(phases: Sequence[Phase]) -> dict[str, str]:
    """Return the positions of all phases and rows by their names: ``"06"`` of a phase, ``"06-02"`` of a row."""
    numbers: dict[str, str] = {}
    for number, phase in enumerate(phases, 1):
        numbers[phase.name] = f"{number:02d}"
        for place, row in enumerate(phase.rows, 1):
            numbers[row.name] = f"{number:02d}-{place:02d}"
    return numbers


def table(phases: Sequence[Phase], context: CompileContext | None = None, width: int = 110) -> str:
    """Return the phases and their rows as text.

    Args:
        phases: in the order in which they run.
        context: the target and the options. Rows that do not run for them begin with ``-``. None marks no row.
        width: the most characters of a line.
    """
    return "\n".join(line for phase in phases for line in _lines_of(phase, context, width))


def _lines_of(phase: Phase, context: CompileContext | None, width: int) -> Iterator[str]:
    yield from _wrapped(f"{phase.name}: {phase.what}", "", 4, width)
    for row in phase.rows:
        mark = " " if context is None or row.when.holds(context) else "-"
        when = f" [{row.when.text}]" if row.when.text else ""
        yield from _wrapped(f"{row.name}{when}: {row.what}", f"  {mark} ", 8, width)
        for claimed, why in row.after.items():
            yield from _wrapped(f"after {claimed}: {why}", " " * 6, 10, width)


def _wrapped(text: str, first: str, indent: int, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * indent)
