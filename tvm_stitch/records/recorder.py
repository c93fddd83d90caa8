# SPDX-License-Identifier: Apache-2.0
"""The recorder collects the decisions of stitching while it runs, and turns them into a Report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plan.kernel import KernelPlan
from ..report.flow import Flow
from ..report.report import Report
from ..scope.identified import Boundary
from .decisions import Decisions, add_all, fresh
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

    def take(self, decisions: Decisions) -> None:
        """Record the decisions about a module."""
        self.plans |= decisions.plans
        self.declined |= decisions.refused()
        self.boundaries += decisions.boundaries
        self.computed |= decisions.computed
        self.flows += decisions.flows

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
