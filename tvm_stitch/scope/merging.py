# SPDX-License-Identifier: Apache-2.0
"""Merge scopes: check obstacles, compare times, merge one by one or many at a time.

Planning a merge takes time that grows with the scope. A scope grown node by node would be planned over and over.
Many merges are therefore tried at a time, and one by one only if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ..config import StitchConfig
from ..cost.choices import Choices
from ..graph.ir import StitchGraph
from ..support.failures import Refusal as Refused
from ..support.failures import fault_at, reason_of
from .compose import Wiring, compose, wiring
from .estimate import FREE, Estimator, KernelEstimate
from .node import Node, Value
from .quotient import Quotient, State


@dataclass(frozen=True)
class RefusedMerge:
    """The reason why two scopes are not merged. ``lossy`` marks a legal merge that is slower than two kernels."""

    reason: str
    lossy: bool = False


class Merger:
    """The scopes of a graph of nodes, with the estimate of each as a kernel.

    ``worth`` holds the estimate of every scope that may be merged, by its name in the quotient graph. ``asked``
    counts the estimated graphs. Nodes of the same graphs, connected in the same way, are estimated once, as in the
    equal layers of a model.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        quotient: Quotient,
        config: StitchConfig,
        choices: Choices,
        estimate: Estimator,
    ):
        self.nodes, self.quotient, self.config, self.choices = nodes, quotient, config, choices
        self._estimate = estimate
        self.worth: dict[int, KernelEstimate] = {}
        self.asked = 0
        self._refused: dict[int, list[str]] = {}
        self._alone: dict[object, KernelEstimate | str] = {}
        self._known: dict[Wiring, KernelEstimate | str] = {}

    # -- appraising ---------------------------------------------------------------------------------------------
    def alone(self, i: int) -> str:
        """Estimate a node as a scope. Return the reason why it is none, or an empty string."""
        node = self.nodes[i]
        assert node.graph is not None
        if len(node.inputs) + len(node.outputs) > self.config.max_arguments:
            return f"it has more than {self.config.max_arguments} arguments (max_arguments)"
        if node.graph not in self._alone:  # calls of one function share its graph
            estimate = self._ask(lambda: node.graph, [node])
            self._alone[node.graph] = FREE if node.is_view and not isinstance(estimate, str) else estimate
        known = self._alone[node.graph]
        if isinstance(known, str):
            return known
        self.worth[i] = known
        return ""

    def _ask(self, graph: Callable[[], StitchGraph | None], nodes: Sequence[Node]) -> KernelEstimate | str:
        """Return the estimate of the nodes as one kernel, or the reason why they are none.

        If one of TVM's analyses fails on an expression, only this merge is lost.

        Raises:
            Exception: a fault of this package. A graph that is planned wrongly must not become a boundary.
        """
        self.asked += 1
        try:
            composed = graph()
            assert composed is not None
            return self._estimate(composed)
        except Refused as err:
            return str(err)
        except Exception as err:
            if fault_at(err) is not None:
                raise
            return reason_of(err, " with ".join(n.name for n in nodes[:6]), self.config.strict, quiet=True)

    def _of(self, members: Sequence[int]) -> KernelEstimate | str:
        nodes, outputs = [self.nodes[i] for i in members], self.outputs(members)
        key = wiring(nodes, outputs)
        if key not in self._known:
            self._known[key] = self._ask(lambda: compose(nodes, outputs), nodes)
        return self._known[key]

    def outputs(self, members: Sequence[int]) -> set[Value]:
        """Return the values that leave a set of nodes."""
        inside = set(members)
        leaving: set[Value] = set()
        for i in members:
            node = self.nodes[i]
            leaving |= node.escapes
            for c in self.quotient.consumers[i]:
                if c not in inside:
                    leaving |= set(node.outputs) & set(self.nodes[c].inputs)
        for i in members:  # a result without readers is still written, as its caller declared it
            if not self.quotient.consumers[i]:
                leaving |= set(self.nodes[i].outputs)
        return leaving

    def part(self, members: Sequence[int]) -> KernelEstimate | None:
        """Return the estimate of a part of a scope as a scope of its own, or None if it is none."""
        estimate = self._of(members)
        return None if isinstance(estimate, str) else estimate

    # -- one by one ---------------------------------------------------------------------------------------------
    def limits(self, members: Sequence[int]) -> str:
        """Return the limit of a kernel that the nodes exceed (empty if none)."""
        nodes = [self.nodes[i] for i in members]
        count = sum(len(n.graph.operators) for n in nodes if n.graph is not None)
        if count > self.config.max_operators:
            return f"{count} operators exceed the limit of {self.config.max_operators} (max_operators)"
        inputs = {v for n in nodes for v in n.inputs} - {v for n in nodes for v in n.outputs}
        arguments = len(inputs) + len(self.outputs(members))
        if arguments > self.config.max_arguments:
            return f"{arguments} arguments exceed the limit of {self.config.max_arguments}"
        return ""

    def obstacle(self, a: int, b: int) -> str:
        """Return the reason that forbids merging two scopes whatever they compute (empty if none)."""
        if self.quotient.would_cycle(a, b):
            return "joining them would make a cycle through an operator outside"
        for s in (a, b):
            refused, is_full = (
                self._refused.get(s, []),
                len(self.quotient.members[s]) > self.choices.full_nodes,
            )
            if is_full and len(refused) > self.choices.full_refusals:
                return refused[-1]
        return self.limits(self._members(a, b))

    def _members(self, *scopes: int) -> list[int]:
        return sorted(i for s in scopes for i in self.quotient.members[s])

    def try_merge(self, a: int, b: int, grid_wide: bool = True) -> RefusedMerge | None:
        """Merge two scopes if that is legal and not slower. Return the refusal otherwise.

        Args:
            a: name of a scope.
            b: name of another.
            grid_wide: whether two scopes that each run on one row domain may become one that is grid-wide.
        """
        if why := self.obstacle(a, b):
            return RefusedMerge(why)
        estimate = self._of(self._members(a, b))
        if isinstance(estimate, str):
            for s in (a, b):
                self._refused.setdefault(s, []).append(estimate)
            return RefusedMerge(estimate)
        before = [self.worth[a], self.worth[b]]
        if estimate.grid and not grid_wide and not any(w.grid for w in before):
            return RefusedMerge("left for later", True)
        if why := loss(estimate, before, self.choices):
            return RefusedMerge(why, True)
        self._merge(a, b, estimate)
        return None

    def _merge(self, a: int, b: int, estimate: KernelEstimate) -> None:
        self._replace([a, b], self.quotient.merge(a, b), estimate)

    def _replace(self, olds: Iterable[int], new: int, estimate: KernelEstimate) -> None:
        """Keep the estimate and the refusals of a scope that replaces others."""
        refused: list[str] = []
        for s in olds:
            del self.worth[s]
            refused += self._refused.pop(s, [])
        self.worth[new] = estimate
        if refused:
            self._refused[new] = refused

    # -- many at a time -----------------------------------------------------------------------------------------
    def merge_all(self, scopes: Sequence[int]) -> bool:
        """Merge scopes into one if that is legal and not slower, else change nothing."""
        before = self.quotient.snapshot()
        into = scopes[0]
        for s in scopes[1:]:
            if self.obstacle(into, s):
                self.quotient.restore(before)
                return False
            into = self.quotient.merge(into, s)
        estimate, apart = self._of(self.quotient.members[into]), [self.worth[s] for s in scopes]
        if (
            isinstance(estimate, str)
            or turns_uncoalesced(estimate, apart)
            or loss(estimate, apart, self.choices)
        ):
            self.quotient.restore(before)
            return False
        self._replace(scopes, into, estimate)
        return True

    def settle(self, before: State, touched: Collection[int]) -> bool:
        """Estimate the scopes that were merged since a snapshot. Undo all merges and return False if one is wrong.

        A merge is wrong here if it turns a scope on one row domain into a grid-wide or an uncoalesced one. Such a
        merge needs a comparison of times.
        """
        scope_of, members = before.scope_of, before.members
        estimates: dict[int, KernelEstimate] = {}
        for s in {self.quotient.scope_of[i] for i in touched}:
            olds = {scope_of[i] for i in self.quotient.members[s]}
            estimate = self._of(self.quotient.members[s])
            if isinstance(estimate, str) or self._is_wrong(olds, members, estimate):
                self.quotient.restore(before)
                return False
            estimates[s] = estimate
        for s, estimate in estimates.items():
            self._replace({scope_of[i] for i in self.quotient.members[s]}, s, estimate)
        return True

    def _is_wrong(
        self, olds: Collection[int], members: dict[int, list[int]], estimate: KernelEstimate
    ) -> bool:
        if turns_uncoalesced(estimate, [self.worth[o] for o in olds]):
            return True
        return estimate.grid and not self._stays_grid(olds, members, estimate)

    def _stays_grid(
        self, olds: Collection[int], members: dict[int, list[int]], estimate: KernelEstimate
    ) -> bool:
        """Return whether a grid-wide scope consists of small scopes, or of a grid-wide one and light ones."""
        worth = {o: self.worth[o] for o in olds}
        if loss(estimate, list(worth.values()), self.choices):
            return False
        if (estimate.moving or 0.0) <= self.choices.small_seconds:
            return True
        rest = [o for o, w in worth.items() if not w.grid and (w.moving or 0.0) > self.choices.small_seconds]
        return len(rest) < len(worth) and all(self._is_light(members[o]) for o in rest)

    def _is_light(self, members: Sequence[int]) -> bool:
        graph = self.nodes[members[0]].graph
        return len(members) == 1 and graph is not None and not graph.reduces


def turns_uncoalesced(estimate: KernelEstimate, before: Sequence[KernelEstimate]) -> bool:
    """Return whether accesses become uncoalesced only by merging the scopes.

    For several scopes at a time the times are not compared. One kernel may be faster than all of them apart, but
    slower than merging only those with equal layouts.
    """
    return estimate.uncoalesced and not any(w.uncoalesced for w in before)


def loss(estimate: KernelEstimate, before: Sequence[KernelEstimate], choices: Choices) -> str:
    """Return the reason if separate kernels are faster than one (empty if they are not, or if that is unknown).

    Rows that stay in their blocks save the data that they keep on chip. Their times are compared only if accesses
    are uncoalesced.
    """
    weighed = estimate.grid or estimate.uncoalesced
    if not weighed or estimate.seconds is None or any(w.seconds is None for w in before):
        return ""
    apart = sum(w.seconds or 0.0 for w in before)
    if estimate.seconds <= apart + choices.launch_doubt_seconds * (len(before) - 1):
        return ""
    kind = "grid-wide kernel" if estimate.grid else "kernel, which reads or writes across memory,"
    return f"one {kind} would take {estimate.seconds * 1e6:.1f} us, apart they take {apart * 1e6:.1f} us"
