# SPDX-License-Identifier: Apache-2.0
"""Scope identification for a target: the limits of its kernels, and their estimated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..config import StitchConfig
from ..cost.choices import Choices
from ..device import device_model
from ..graph.ir import StitchGraph
from ..plan.iteration.index_space import IndexSpaces
from ..support.resilient import Reasons, resilient
from .epilogue import EpilogueRules, no_template
from .estimate import KernelEstimate, estimate_kernel, in_block
from .identified import Identified
from .identify import Excluded, identify, none_excluded
from .node import Node, NodeKind

if TYPE_CHECKING:
    from tvm.target import Target


def identify_for(
    nodes: Sequence[Node],
    target: Target | None,
    config: StitchConfig,
    topi: bool = False,
    excluded: Excluded = none_excluded,
    template: Callable[[StitchGraph], bool] = no_template,
    permuted: Callable[[StitchGraph], bool] = no_template,
) -> Identified:
    """Partition nodes (in topological order) into scopes.

    Args:
        nodes: the calls of a dataflow block.
        target: a TVM target, or None if it is unknown.
        config: limits, and permitted rewrites.
        topi: whether TOPI's schedules (Relay's, or Ansor's in their place) compute the remaining operators, on CPUs
            too. Otherwise dlight's do, on GPUs only. Both compute an epilogue where the matmul leaves its result. The
            kernels of a library, which the target may ask for (``-libs``), do not.
        excluded: returns whether TVM is to have a scope, from the scope's nodes and graph.
        template: returns whether a template of this package computes a compute-intensive graph.
        permuted: the same for such a graph behind permutations of its operands' axes.
    """
    gpu = target is None or "gpu" in target.keys
    device = device_model(target, config) if target is not None else None
    choices = device.choices if device is not None else Choices()
    limited = config if gpu else config.limited(choices.cpu_operators, choices.cpu_arguments)
    libraries = target is not None and bool(target.attrs.get("libs"))
    rules = EpilogueRules(
        heavy=gpu,
        greedy=(gpu or topi) and not libraries,
        template=template,
        permuted=permuted,
    )
    spaces = IndexSpaces()  # the same nodes are estimated alone and with others

    def estimate(graph: StitchGraph) -> KernelEstimate:
        if device is None:
            return in_block(graph, choices, spaces)
        return estimate_kernel(graph, device, limited, spaces)

    return _identified(
        nodes, limited, lambda: identify(nodes, limited, choices, rules, estimate, excluded, not topi)
    )


def _identified(nodes: Sequence[Node], config: StitchConfig, run: Callable[[], Identified]) -> Identified:
    """Return a partition of the nodes. If it fails, leave the fewest nodes to TVM with which it succeeds."""
    kinds = {n: (n.kind, n.reason, n.is_call) for n in nodes if n.kind is NodeKind.MEMORY}

    def step(excluded: Mapping[Node, Reasons]) -> Identified:
        for n, kept in kinds.items():
            n.kind, n.reason, n.is_call = kept
            if n in excluded:
                n.kind, n.reason = NodeKind.OPAQUE, excluded[n][0][1] if excluded[n] else ""
                n.is_call = n.is_call or bool(excluded[n])
        return run()

    return resilient(step, lambda _: {n: n.name for n in kinds}, strict=config.strict, what="the model")
