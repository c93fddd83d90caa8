# SPDX-License-Identifier: Apache-2.0
"""The answer for one pair: whether two operators are in one kernel, and if not, why."""

from __future__ import annotations

import difflib
from collections import deque

from .data import KernelEdge, ModelReport


def why(report: ModelReport, first: str, second: str) -> str:
    """Return why two operators or kernels are, or are not, one kernel.

    A name is looked up among the kernels' functions, the model's nodes, variables and operators, in this order. If
    several have the name, the nearest pair counts.

    Raises:
        ValueError: if nothing has such a name.
    """
    a, b = kernels_of(report, first), kernels_of(report, second)
    if a is None or b is None:
        name = first if a is None else second
        return f"{name} is no kernel: a view, or computed when the model is compiled"
    both = sorted(a & b)
    if both:
        return f"{first} and {second} are in one kernel: {report.kernels[both[0]].function}"
    edges = [
        e
        for e in report.edges
        if (e.producer in a and e.consumer in b) or (e.producer in b and e.consumer in a)
    ]
    if edges:
        return "\n".join(_edge_lines(report, edges))
    path = _path(report, a, b) or _path(report, b, a)
    if path:
        between = [report.kernels[k].function for k in path[1:-1]]
        ends = f"{report.kernels[path[0]].function} and {report.kernels[path[-1]].function}"
        return f"{ends} are not neighbours: between them: {', '.join(between)}"
    return (
        f"{report.kernels[min(a)].function} and {report.kernels[min(b)].function} do not depend on each other, and "
        "joining them would save neither a launch's worth of time nor a reading of the same large input"
    )


def kernels_of(report: ModelReport, name: str) -> set[int] | None:
    """Return the kernels that a name refers to, or None for an operator that no kernel computes.

    Raises:
        ValueError: if nothing has the name.
    """
    kernels = {i for i, k in enumerate(report.kernels) if k.function == name}
    if kernels:
        return kernels
    # ONNX writes Softmax, PyTorch LayerNorm, TVM softmax: case is ignored only if no exact name matches.
    for same in (str, str.lower):
        for key in ("source", "name", "label", "operator", "kind"):
            operators = [o for o in report.operators if same(str(getattr(o, key) or "")) == same(name)]
            if operators:
                return {k for o in operators for k in o.kernels} or None
    known = [
        *(k.function for k in report.kernels),
        *(n for o in report.operators for n in (o.source, o.name) if n),
    ]
    near = difflib.get_close_matches(name, dict.fromkeys(known), n=3)
    raise ValueError(f"nothing is called {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))


def _edge_lines(report: ModelReport, edges: list[KernelEdge]) -> list[str]:
    reasons_of: dict[tuple[str, str], dict[str, list[str]]] = {}
    for edge in edges:
        ends = report.kernels[edge.producer].function, report.kernels[edge.consumer].function
        for reason in edge.reasons:
            more = [f"  {reason.producer} | {reason.consumer}: {reason.text}"]
            more += [f"    {reason.meaning}"] if reason.meaning else []
            more += [f"    What to do: {reason.advice}"] if reason.advice else []
            reasons_of.setdefault(ends, {})[more[0]] = more
    lines = []
    for (a, b), reasons in reasons_of.items():
        lines += [f"{a} | {b}", *(line for more in reasons.values() for line in more)]
    return lines or ["they are two kernels, and no reason was recorded"]


def _path(report: ModelReport, starts: set[int], ends: set[int]) -> list[int]:
    """Return the shortest path along edges from one set of kernels to another. It is empty if there is none."""
    after: dict[int, list[int]] = {}
    for edge in report.edges:
        after.setdefault(edge.producer, []).append(edge.consumer)
    before: dict[int, int | None] = dict.fromkeys(starts)
    waiting = deque(sorted(starts))
    while waiting:
        at = waiting.popleft()
        if at in ends:
            path = [at]
            while (previous := before[path[-1]]) is not None:
                path.append(previous)
            return path[::-1]
        for consumer in after.get(at, ()):
            if consumer not in before:
                before[consumer] = at
                waiting.append(consumer)
    return []
