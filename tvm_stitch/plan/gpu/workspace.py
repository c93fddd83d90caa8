# SPDX-License-Identifier: Apache-2.0
"""Scratch: device memory in which a kernel's blocks hand values to each other across a grid barrier."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.extent import Extent


@dataclass(frozen=True)
class Scratch:
    """One scratch buffer of a stitch op. It becomes a trailing output of the PrimFunc, lifted to Relax' workspace."""

    name: str
    shape: tuple[Extent, ...]
    dtype: str
