# SPDX-License-Identifier: Apache-2.0
"""The plan of a stitched kernel as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..graph.sizes import Size


@dataclass
class Kernel:
    """One stitch op as plain data, ready to print. In JSON, sizes of symbolic shapes are text.

    ``groups`` lists the groups of all stages, each with its phase. An operator that several stages compute is in a
    group of each. On one row domain, ``rows``, ``passes`` and ``mapping`` describe the kernel. A grid-wide plan has
    ``phases`` instead, each with its stages, and ``rows`` is ``"grid-wide"``. ``scratch`` lists the buffers in
    device memory through which blocks pass values. ``launch`` has the blocks, threads and grid barriers if the plan
    fixes them. ``variants`` lists other mappings, each with the rows of symbolic length for which it is launched.
    ``seconds`` is the cost model's estimate, of the memory alone, and None for a symbolic shape.
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
