# SPDX-License-Identifier: Apache-2.0
"""The report's data where only plans are known: kernels once each, and no edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from .data import KernelCall, ModelReport, Reason, Totals, add_sizes
from .kernel import Kernel


def bare_report(
    target: str, device: str, kernels: Sequence[Kernel], left: Mapping[str, str], boundaries: Sequence[Reason]
) -> ModelReport:
    """Return the report of kernels whose calls nobody has recorded.

    Args:
        target: as text.
        device: what it is planned for, as text.
        kernels: what their plans say.
        left: the calls that no stitch op took, with the reasons.
        boundaries: why neighbours are in different kernels.
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
