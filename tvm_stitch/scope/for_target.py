# SPDX-License-Identifier: Apache-2.0
"""Scope identification as a target wants it: what its kernels may hold, and what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import StitchConfig
from ..device import device_model
from .appraise import appraise
from .identify import Identified, identify
from .node import Node

CPU_OPERATORS, CPU_ARGUMENTS = 64, 32
"""Limits of a stitch op on a CPU, where compile time grows faster with its size than any gain does."""


def identify_for(nodes: Sequence[Node], target: Any, config: StitchConfig) -> Identified:
    """Partition nodes (in topological order) into scopes; ``target`` is a TVM target, or None where it is not known."""
    gpu = target is None or "gpu" in target.keys
    device = device_model(target, config) if target is not None else None
    limited = config if gpu else config.limited(CPU_OPERATORS, CPU_ARGUMENTS)
    return identify(
        nodes, limited, heavy_epilogues=gpu, appraise=lambda graph: appraise(graph, device, limited)
    )
