# SPDX-License-Identifier: Apache-2.0
"""Recorder: what stitching decides about modules, collected while it runs, and made a Report on request."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from ..plan.kernel import KernelPlan
from ..report.flow import Flow
from ..report.report import Report
from ..scope.identify import Boundary
from .describe import report_of


class Recorder:
    """What was decided: plans by kernel, refusals by operator or scope, and the boundaries between kernels.

    ``computed`` tells for each compute-intensive operator what computes it, and why.

    ``targets`` are what it was decided for, as text, each once. ``flows`` are the blocks that scopes were identified
    in, where the front end tells them by the names of the program's values.
    """

    def __init__(self) -> None:
        self.plans: dict[str, KernelPlan] = {}
        self.declined: dict[str, str] = {}
        self.boundaries: list[Boundary] = []
        self.computed: dict[str, str] = {}
        self.targets: list[str] = []
        self.flows: list[Flow] = []

    def note_target(self, target: Any) -> None:
        """What follows is decided for this target."""
        if str(target) not in self.targets:
            self.targets.append(str(target))

    def copy(self) -> Recorder:
        """What is held now, apart from what comes later."""
        held = Recorder()
        held.return_to(self)
        return held

    def return_to(self, held: Recorder) -> None:
        """Hold what ``held`` does, and nothing else; the targets stay known."""
        self.plans, self.declined = dict(held.plans), dict(held.declined)
        self.boundaries, self.computed = list(held.boundaries), dict(held.computed)
        self.flows = list(held.flows)
        for target in held.targets:
            self.note_target(target)

    def add(self, other: Recorder) -> None:
        """Take over what another one holds. Names that were there get a number, such as ``"softmax (2)"``."""
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
        """What was decided, as ``explain`` reports it."""
        return report_of(", ".join(self.targets), self.plans, self.declined, self.boundaries, self.computed)


def add_all(known: dict[str, Any], more: Iterable[tuple[str, Any]]) -> None:
    """Add some under their names, which get a number where they are taken: no one replaces another."""
    for name, value in more:
        known[fresh(name, known)] = value


def fresh(name: str, taken: Container[str], numbered: str = "{} ({})") -> str:
    """Return the name, with a number behind it, as ``numbered`` has them, where it is taken."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = numbered.format(name, number)
    return found
