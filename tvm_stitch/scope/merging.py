# SPDX-License-Identifier: Apache-2.0
"""Merge scopes: what forbids it, what it is worth, and one by one or many at a time.

Planning what a merge would give takes time that grows with the scope, so that a scope grown node by node would be
planned over and over. Merges are therefore tried many at a time, and one by one only where that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ..config import StitchConfig
from ..graph.ir import StitchGraph
from ..plan import heuristics
from ..support.failures import Refusal as Refused
from ..support.failures import fault_at, reason_of
from .compose import Wiring, compose, wiring
from .estimate import FREE, Estimator, KernelEstimate
from .node import Node, Value
from .quotient import Quotient, State


@dataclass(frozen=True)
class Refusal:
    """Why two scopes are not merged; ``lossy`` when they could be, but two kernels take less time than one."""

    reason: str
    lossy: bool = False


class Merger:
    """The scopes of a graph of nodes, with what each is worth as a kernel.

    ``worth`` is kept for every scope that may be merged, by its name in the quotient graph. ``asked`` counts the
    graphs that were estimated: nodes of the same graphs, connected in the same way, are estimated once, as in the equal
    layers of a model.
    """

    def __init__(self, nodes: Sequence[Node], quotient: Quotient, config: StitchConfig, estimate: Estimator):
        self.nodes, self.quotient, self.config = nodes, quotient, config
        self._estimate = estimate
        self.worth: dict[int, KernelEstimate] = {}
        self.asked = 0
        self._refused: dict[int, list[str]] = {}
        self._alone: dict[object, KernelEstimate | str] = {}
        self._known: dict[Wiring, KernelEstimate | str] = {}

    # -- appraising ---------------------------------------------------------------------------------------------
    def alone(self, i: int) -> str:
        """Estimate a node as a scope; the reason why it is none otherwise (empty when it is one)."""
        node = self.nodes[i]
        assert node.graph is not None
        if len(node.inputs) + len(node.outputs) > self.config.max_arguments:
            return f"it has more than {self.config.max_arguments} arguments (max_arguments)"
        if node.graph not in self._alone:  # calls of one function share its graph
            found = self._ask(lambda: node.graph, [node])
            self._alone[node.graph] = FREE if node.is_view and not isinstance(found, str) else found
        known = self._alone[node.graph]
        if isinstance(known, str):
            return known
        self.worth[i] = known
        return ""

    def _ask(self, graph: Callable[[], StitchGraph | None], nodes: Sequence[Node]) -> KernelEstimate | str:
        """What the nodes would be as one kernel, or why they are none.

        An expression that an analysis of TVM's fails on costs this merge and no more.

        Raises:
            Exception: a fault of this package: no graph that is planned wrongly becomes a boundary.
        """
        self.asked += 1
        try:
            made = graph()
            assert made is not None
            return self._estimate(made)
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
        """The values that leave a set of nodes."""
        inside = set(members)
        found: set[Value] = set()
        for i in members:
            node = self.nodes[i]
            found |= node.escapes
            for c in self.quotient.consumers[i]:
                if c not in inside:
                    found |= set(node.outputs) & set(self.nodes[c].inputs)
        for i in members:  # a result nobody uses is still written, as its caller declared it
            if not self.quotient.consumers[i]:
                found |= set(self.nodes[i].outputs)
        return found

    # -- one by one ---------------------------------------------------------------------------------------------
    def limits(self, members: Sequence[int]) -> str:
        """Which limit of a kernel the nodes exceed (empty when none)."""
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
        """What forbids merging two scopes whatever they compute (empty when nothing does)."""
        if self.quotient.would_cycle(a, b):
            return "joining them would make a cycle through an operator outside"
        for s in (a, b):
            refused, is_full = self._refused.get(s, []), len(self.quotient.members[s]) > heuristics.FULL_NODES
            if is_full and len(refused) > heuristics.FULL_REFUSALS:
                return refused[-1]
        return self.limits(self._members(a, b))

    def _members(self, *scopes: int) -> list[int]:
        return sorted(i for s in scopes for i in self.quotient.members[s])

    def try_merge(self, a: int, b: int, turn: bool = True) -> Refusal | None:
        """Merge two scopes if that is legal and does not lose; why not otherwise.

        ``turn``: two scopes that each run on one row domain may become one that is grid-wide.
        """
        if why := self.obstacle(a, b):
            return Refusal(why)
        found = self._of(self._members(a, b))
        if isinstance(found, str):
            for s in (a, b):
                self._refused.setdefault(s, []).append(found)
            return Refusal(found)
        before = [self.worth[a], self.worth[b]]
        if found.grid and not turn and not any(w.grid for w in before):
            return Refusal("left for later", True)
        if why := loss(found, before):
            return Refusal(why, True)
        self._merge(a, b, found)
        return None

    def _merge(self, a: int, b: int, found: KernelEstimate) -> None:
        self._replace([a, b], self.quotient.merge(a, b), found)

    def _replace(self, olds: Iterable[int], new: int, found: KernelEstimate) -> None:
        """Keep what is known of a scope that has taken the place of others."""
        refused: list[str] = []
        for s in olds:
            del self.worth[s]
            refused += self._refused.pop(s, [])
        self.worth[new] = found
        if refused:
            self._refused[new] = refused

    # -- many at a time -----------------------------------------------------------------------------------------
    def merge_all(self, scopes: Sequence[int]) -> bool:
        """Merge scopes into one if that is legal and does not lose; else nothing changes."""
        before = self.quotient.snapshot()
        into = scopes[0]
        for s in scopes[1:]:
            if self.obstacle(into, s):
                self.quotient.restore(before)
                return False
            into = self.quotient.merge(into, s)
        found, apart = self._of(self.quotient.members[into]), [self.worth[s] for s in scopes]
        if isinstance(found, str) or turns_across(found, apart) or loss(found, apart):
            self.quotient.restore(before)
            return False
        self._replace(scopes, into, found)
        return True

    def settle(self, before: State, touched: Collection[int]) -> bool:
        """Estimate scopes that were merged in the quotient graph since a snapshot; undo all of it if one is wrong.

        What turns a scope on one row domain into a grid-wide one, or into one that lies across memory, is wrong here,
        since that has to be weighed.
        """
        scope_of, members = before.scope_of, before.members
        found: dict[int, KernelEstimate] = {}
        for s in {self.quotient.scope_of[i] for i in touched}:
            olds = {scope_of[i] for i in self.quotient.members[s]}
            got = self._of(self.quotient.members[s])
            if isinstance(got, str) or self._is_wrong(olds, members, got):
                self.quotient.restore(before)
                return False
            found[s] = got
        for s, got in found.items():
            self._replace({scope_of[i] for i in self.quotient.members[s]}, s, got)
        return True

    def _is_wrong(self, olds: Collection[int], members: dict[int, list[int]], found: KernelEstimate) -> bool:
        if turns_across(found, [self.worth[o] for o in olds]):
            return True
        return found.grid and not self._stays_grid(olds, members, found)

    def _stays_grid(
        self, olds: Collection[int], members: dict[int, list[int]], found: KernelEstimate
    ) -> bool:
        """Is a grid-wide scope the result of small ones, or of one and what is light beside it?"""
        worth = {o: self.worth[o] for o in olds}
        if loss(found, list(worth.values())):
            return False
        if (found.moving or 0.0) <= heuristics.SMALL_SECONDS:
            return True
        rest = [o for o, w in worth.items() if not w.grid and (w.moving or 0.0) > heuristics.SMALL_SECONDS]
        return len(rest) < len(worth) and all(self._is_light(members[o]) for o in rest)

    def _is_light(self, members: Sequence[int]) -> bool:
        graph = self.nodes[members[0]].graph
        return len(members) == 1 and graph is not None and not graph.reduces


def turns_across(found: KernelEstimate, before: Sequence[KernelEstimate]) -> bool:
    """Whether kernels read and write across memory only when they are one.

    Of several at a time that is not weighed: they may well be faster than all of them apart, but not than those of
    them that lie alike.
    """
    return found.scattered and not any(w.scattered for w in before)


def loss(found: KernelEstimate, before: Sequence[KernelEstimate]) -> str:
    """Why kernels apart are faster than one (empty when they are not, or that is not known).

    Rows that stay in their blocks save what they keep on chip, and are not weighed unless they lie across memory.
    """
    weighed = found.grid or found.scattered
    if not weighed or found.seconds is None or any(w.seconds is None for w in before):
        return ""
    apart = sum(w.seconds or 0.0 for w in before)
    if found.seconds <= apart + heuristics.LAUNCH_DOUBT_SECONDS * (len(before) - 1):
        return ""
    kind = "grid-wide kernel" if found.grid else "kernel, which reads or writes across memory,"
    return f"one {kind} would take {found.seconds * 1e6:.1f} us, apart they take {apart * 1e6:.1f} us"
