# SPDX-License-Identifier: Apache-2.0
"""Report data made from plans alone: each kernel once, and no edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from .data import KernelCall, ModelReport, Reason, Totals, add_sizes
from .kernel import Kernel


def bare_report(
    target: str, device: str, kernels: Sequence[Kernel], left: Mapping[str, str], boundaries: Sequence[Reason]
) -> ModelReport:
    """Return the report of kernels whose calls were not recorded.

    Args:
        target: the target, as text.
        device: the device of the plans, as text.
        kernels: the plans' data.
        left: the calls that no stitch op took, with the reasons.
        boundaries: the reasons why neighbours are in different kernels.
    """
    calls = tuple(
        KernelCall(k.name, "stitched", (), (), (), k.bytes_read, k.bytes_written, k.bytes_least, k.seconds)
        for k in kernels
    )
    moved = Totals(len(calls), 0, add_sizes(*(call.bytes_moved for call in calls)))
    return ModelReport(
        target=target,
        target_full=target,
        device=device,
        kernels=calls,
        edges=(),
        operators=(),
        repeats=(),
        plans={k.name: asdict(k) for k in kernels},
        left=dict(left),
        boundaries=tuple(boundaries),
        stitched=moved,
    )
