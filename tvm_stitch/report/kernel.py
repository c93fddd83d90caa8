# SPDX-License-Identifier: Apache-2.0
"""What the plan of a stitched kernel says, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..graph.sizes import Size


@dataclass
class Kernel:
    """One stitch op: plain data, ready to print. In JSON sizes of symbolic shapes are text.

    ``groups`` are those of all stages, each with its phase; what several stages compute is in a group of each.
    On one row domain ``rows``, ``passes`` and ``mapping`` say how it runs. A grid-wide plan has ``phases`` instead,
    each with its stages, and ``rows`` is ``"grid-wide"``. ``scratch`` lists the buffers in device memory through which
    blocks hand on values, ``launch`` the blocks, threads and grid barriers where the plan fixes them. ``variants`` are
    mappings of other kernels that are launched instead where rows of symbolic length turn out to serve: each says for
    which. ``seconds`` is what the cost model expects, of the memory alone: None where a shape is symbolic.
    """

    name: str
    operators: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    rows: str
    passes: list[dict[str, Any]]
    mapping: dict[str, Any]
    shared_bytes: int
    bytes_read: Size
    bytes_written: Size
    bytes_least: Size
    phases: list[dict[str, Any]] = field(default_factory=list)
    scratch: list[dict[str, Any]] = field(default_factory=list)
    launch: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    variants: list[dict[str, Any]] = field(default_factory=list)
