# SPDX-License-Identifier: Apache-2.0
"""The recorder collects the decisions of stitching while it runs, and turns them into a Report."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

from ..plan.kernel import KernelPlan
from ..report.flow import Flow
from ..report.report import Report
from ..scope.identify import Boundary
from .describe import report_of

if TYPE_CHECKING:
    from tvm.target import Target


class Recorder:
    """Recorded decisions: plans by kernel, refusals by operator or scope, and the boundaries between kernels.

    ``computed`` says for each compute-intensive operator what computes it, and why. ``targets`` lists the targets
    as text, each once. ``flows`` are the blocks in which scopes were identified, if the front end knows the
    program's names of values.
    """

    def __init__(self) -> None:
        self.plans: dict[str, KernelPlan] = {}
        self.declined: dict[str, str] = {}
        self.boundaries: list[Boundary] = []
        self.computed: dict[str, str] = {}
        self.targets: list[str] = []
        self.flows: list[Flow] = []

    def note_target(self, target: Target) -> None:
        """Record the target of the decisions that follow."""
        if str(target) not in self.targets:
            self.targets.append(str(target))

    def copy(self) -> Recorder:
        """Return a copy of the current records."""
        held = Recorder()
        held.return_to(self)
        return held

    def return_to(self, held: Recorder) -> None:
        """Replace all records by those of ``held``. Known targets stay."""
        self.plans, self.declined = dict(held.plans), dict(held.declined)
        self.boundaries, self.computed = list(held.boundaries), dict(held.computed)
        self.flows = list(held.flows)
        for target in held.targets:
            self.note_target(target)

    def add(self, other: Recorder) -> None:
        """Add the records of another recorder. Names already in use get a number, such as ``"softmax (2)"``."""
        for target in other.targets:
            self.note_target(target)
        add_all(self.plans, other.plans.items())
        for name, reason in other.declined.items():
            if self.declined.get(name) != reason:
                self.declined[fresh(name, self.declined)] = reason
        self.boundaries += other.boundaries
        self.flows += other.flows
        add_all(self.computed, other.computed.items())

    def report(self) -> Report:
        """Return the report of ``explain``."""
        return report_of(", ".join(self.targets), self.plans, self.declined, self.boundaries, self.computed)


def add_all(known: dict[str, Any], more: Iterable[tuple[str, Any]]) -> None:
    """Add entries under their names. A name already in use gets a number, so that no entry replaces another."""
    for name, value in more:
        known[fresh(name, known)] = value


def fresh(name: str, taken: Container[str], numbered: str = "{} ({})") -> str:
    """Return the name, with a number in the form of ``numbered`` if it is taken."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = numbered.format(name, number)
    return candidate
