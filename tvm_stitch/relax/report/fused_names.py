# SPDX-License-Identifier: Apache-2.0
"""Match the calls that stitching saw with the kernels that they end in, by names of results or by order.

TVM's fusion numbers the results of the functions that it makes anew. It puts each function at the position of its
last call, and names it after its calls. So the call is found between neighbours that have kept their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...report.flow import Flow
from ..rewriting.marked_names import is_fresh
from .kernel_calls import Call


def ends_of(calls: Sequence[Call | None], flow: Flow) -> dict[int, int]:
    """Return the kernel's call for each node of a flow whose results the kernel writes, both by index.

    Args:
        calls: the calls of the flow's function, and None for calls of other functions.
        flow: the calls before TVM's fusion.
    """
    node_of = {v: i for i, node in enumerate(flow.nodes) for v in node.values if not is_fresh(v)}
    ends: dict[int, int] = {}
    unknown: list[tuple[int, str, int]] = []  # kernels without a known name, with the last node before
    last = -1
    for k, call in enumerate(calls):
        if call is None:
            continue
        own = [node_of[v.name] for v in call.results if v.name in node_of]
        for node in own:
            ends[node] = k
        if own:
            last = max(last, *own)
        elif call.results:
            unknown.append((k, call.function, last))
    for k, function, after in unknown:
        end = _next(flow, function, after, ends)
        if end is not None:
            ends[end] = k
    return ends


def _next(flow: Flow, function: str, after: int, taken: Mapping[int, int]) -> int | None:
    """Return the first node after ``after`` that may end a function of this name, or None."""
    name = re.sub(r"_tiled(\d*)$", "", function)
    for i in range(after + 1, len(flow.nodes)):
        if i not in taken and re.search(rf"(^|_){re.escape(flow.nodes[i].function)}\d*$", name):
            return i
    return None
