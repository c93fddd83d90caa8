# SPDX-License-Identifier: Apache-2.0
"""Build the data of a report from a module before and after stitching, its flows and its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tvm

from ...cost.sol import Load, Work, moving_seconds, seconds
from ...device import DeviceModel
from ...report.data import (
    Bytes,
    KernelCall,
    KernelEdge,
    Kind,
    ModelReport,
    Reason,
    SourceOperator,
    Totals,
    add_sizes,
)
from ...report.flow import Flow, FlowNode
from ...report.owners import Step, owners
from ...report.reasons import explained
from ...report.repeats import find_repeats
from ...report.words import target_words
from ..rewriting.marked_names import is_fresh, parts, unmarked
from ..stitch.dataflow import LIBRARY, OWN
from .fused_names import ends_of
from .kernel_calls import Call, Calls, kernel_calls
from .notes import COMPUTE, Notes, kinds_of
from .source_operators import Source


def model_report(
    lowered: tvm.IRModule,
    sources: tuple[Sequence[Source], Sequence[Step]],
    flows: Sequence[Flow],
    plans: Mapping[str, Any],
    computed: Mapping[str, str],
    left: Mapping[str, str],
    target: tvm.target.Target,
    device: DeviceModel,
) -> ModelReport:
    """Return the report of a module that went through the planning passes.

    Args:
        lowered: the module after the planning passes, with marked names.
        sources: the operators of the module before the passes, with marked names, and the dependencies between them.
        flows: the blocks in which scopes were identified.
        plans: by function of a stitched kernel, its plan (:class:`tvm_stitch.report.kernel.Kernel`).
        computed: by marked name, the implementation of compute-intensive operators.
        left: the calls that no stitch op took, with the reasons.
        target: the target that the module is planned for.
        device: the model of the target's device.
    """
    calls = kernel_calls(lowered)
    steps = _Owned(calls, sources, flows)
    kinds = kinds_of(calls.calls, plans)
    operators = tuple(
        SourceOperator(s.name, s.operator, s.source, s.shape, s.dtype, step.producers, own)
        for s, step, own in zip(*sources, steps.operators)
    )
    members: list[list[int]] = [[] for _ in calls.calls]
    for i, operator in enumerate(operators):
        for kernel in operator.kernels:
            members[kernel].append(i)
    of_members = [[operators[m] for m in own] for own in members]
    notes = Notes(computed, left).of_calls(calls.calls, kinds, steps.flows_of, of_members)
    kernels = tuple(
        _kernel(call, kinds[i], members[i], plans, device, notes[i]) for i, call in enumerate(calls.calls)
    )
    report = ModelReport(
        target=target_words(target.kind.name, target.attrs),
        target_full=str(target),
        device=device.name,
        kernels=kernels,
        edges=tuple(_edges(calls.calls, kinds, steps)),
        operators=operators,
        repeats=find_repeats([(k.function, *(v.shape for v in k.results)) for k in kernels]),
        plans={name: asdict(plan) for name, plan in plans.items()},
        left=dict(left),
        boundaries=tuple(steps.boundaries),
        stitched=_totals(kernels),
    )
    return unmarked(report)


def _totals(kernels: Sequence[KernelCall]) -> Totals:
    compute = [k.bytes_moved for k in kernels if k.kind in ("compute", "library")]
    return Totals(
        len(kernels), len(compute), add_sizes(*(k.bytes_moved for k in kernels)), add_sizes(*compute)
    )


class _Owned:
    """Assigns kernels to the source operators, and to the calls that stitching saw.

    ``flows_of`` gives by kernel the nodes of flows in it. ``refused`` gives by pair of kernels the reasons why they
    are not one kernel. ``boundaries`` has all refusals.
    """

    def __init__(self, calls: Calls, sources: tuple[Sequence[Source], Sequence[Step]], flows: Sequence[Flow]):
        self.flows_of: list[list[FlowNode]] = [[] for _ in calls.calls]
        self.refused: dict[tuple[int, int], list[Reason]] = {}
        self.boundaries: list[Reason] = []
        callers = list(dict.fromkeys([*(s.function for s in sources[0]), *calls.views]))
        written = {caller: calls.written(caller) for caller in callers}
        known = {
            caller: {part: {k} for v, k in written[caller].items() if not is_fresh(v) for part in parts(v)}
            for caller in callers
        }
        for flow in flows:
            steps = [Step(node.values, node.producers) for node in flow.nodes]
            names = {v for step in steps for v in step.values}
            caller = max(callers, key=lambda c: len(names & known[c].keys()))
            ends = ends_of(calls.calls_of(caller), flow)
            # The reader of a value that has a kernel of its own computes it in an epilogue only.
            apart = {i: set[int]() for i, n in enumerate(flow.nodes) if n.reason in (OWN, LIBRARY)}
            known_ends = apart | {i: {k} for i, k in ends.items()}
            views = frozenset(calls.views.get(caller, ()))
            placed = owners(steps, known_ends, views)
            if hosts := _hosts(calls, flow, steps, placed):
                placed = owners(steps, known_ends | hosts, views)
            self._assign(flow, placed)
            for step, kernels in zip(steps, placed):
                for value in (part for v in step.values for part in parts(v)):
                    if kernels and not is_fresh(value):
                        known[caller].setdefault(value, set(kernels))
        self.operators: list[tuple[int, ...]] = []
        for caller in callers:
            own = [step for s, step in zip(*sources) if s.function == caller]
            first = len(self.operators)
            steps = [Step(s.values, tuple(p - first for p in s.producers)) for s in own]
            sure = {i: known[caller][v] for i, s in enumerate(steps) for v in s.values if v in known[caller]}
            self.operators += owners(steps, sure, frozenset(calls.views.get(caller, ())))

    def _assign(self, flow: Flow, placed: Sequence[tuple[int, ...]]) -> None:
        for node, kernels in zip(flow.nodes, placed):
            for k in kernels:
                self.flows_of[k].append(node)
        for r in flow.refusals:
            producer, consumer = flow.nodes[r.producer], flow.nodes[r.consumer]
            if set(placed[r.producer]) & set(placed[r.consumer]):
                continue  # a later pass has put them in one kernel
            reason = Reason(producer.function, consumer.function, r.reason, *explained(r.reason))
            self.boundaries.append(reason)
            for a in placed[r.producer]:
                for b in placed[r.consumer]:
                    known = self.refused.setdefault((a, b), [])
                    if a != b and reason not in known:
                        known.append(reason)


def _hosts(
    calls: Calls, flow: Flow, steps: Sequence[Step], placed: Sequence[tuple[int, ...]]
) -> dict[int, set[int]]:
    """Return the kernels of convolutions that have an epilogue, by the convolution's node.

    Such a kernel writes what the epilogue's operators compute, and not the convolution's own result.
    """
    hosts: dict[int, set[int]] = {}
    for node, step, kernels in zip(flow.nodes, steps, placed):
        if node.reason in (OWN, LIBRARY):
            continue
        own = {k for k in kernels if calls.calls[k].marked}
        for producer in step.producers:
            if own and flow.nodes[producer].reason == OWN and not placed[producer]:
                hosts.setdefault(producer, set()).update(own)
    return hosts


def _kernel(
    call: Call, kind: Kind, members: Sequence[int], plans: Mapping[str, Any], device: DeviceModel, note: str
) -> KernelCall:
    least = add_sizes(*(v.bytes for v in [*call.operands, *call.results]))
    plan = plans.get(call.function)
    moved = (None, None, least, estimated(least, device), note)
    if plan is not None:
        moved = (plan.bytes_read, plan.bytes_written, plan.bytes_least, plan.seconds, "")
    return KernelCall(
        call.function,
        kind,
        tuple(members),
        tuple(call.operands),
        tuple(call.results),
        *moved,
        caller=call.caller,
    )


def estimated(size: Bytes, device: DeviceModel) -> float | None:
    """Return the seconds that the cost model expects for moving ``size`` bytes, or None for a symbolic size."""
    if not isinstance(size, int):
        return None
    work = Work(((Load(size),),))
    return seconds(work, device) if device.is_gpu else moving_seconds(work, device)


def _edges(calls: Sequence[Call], kinds: Sequence[Kind], steps: _Owned) -> list[KernelEdge]:
    edges = []
    for consumer, call in enumerate(calls):
        for producer, values in call.producers.items():
            reasons = tuple(steps.refused.get((producer, consumer), ())) or _by_kind(
                producer, consumer, calls, kinds, steps
            )
            edges.append(KernelEdge(producer, consumer, tuple(dict.fromkeys(values)), reasons))
    return edges


def _by_kind(
    producer: int, consumer: int, calls: Sequence[Call], kinds: Sequence[Kind], steps: _Owned
) -> tuple[Reason, ...]:
    """Return the reasons why two kernels are not one if no merge was tried: one of them is not a stitch op."""
    names = calls[producer].function, calls[consumer].function
    for end in (consumer, producer):
        if kinds[end] in ("compute", "library"):
            text = LIBRARY if kinds[end] == "library" else COMPUTE
            if calls[end].marked and not any(node.kind == COMPUTE for node in steps.flows_of[end]):
                text = OWN
            return (Reason(*names, text, *explained(text)),)
    for end in (consumer, producer):
        for node in steps.flows_of[end]:
            if kinds[end] == "tvm" and node.reason:
                return (Reason(*names, node.reason, *explained(node.reason)),)
    return ()
