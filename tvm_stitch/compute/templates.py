# SPDX-License-Identifier: Apache-2.0
"""Templates for compute-intensive operators: where there are any, their tiles, and what is told of them."""

from __future__ import annotations

from typing import Any

from ..config import StitchConfig
from .contraction import Contraction
from .convolution import Convolution
from .tiles import Tiles, tiles_for, tiles_for_convolution

TEMPLATE = "our template"


def has_templates(target: Any, config: StitchConfig) -> bool:
    """Whether templates compute operators for a target: on CPUs, unless TVM's schedules are asked for."""
    return (
        target is not None and target.kind.name == "llvm" and not {"matmul", "convolution"} <= config.of_tvm
    )


def tiles_of(target: Any, product: Contraction | Convolution) -> Tiles:
    """The tiles of an operator on a CPU."""
    if isinstance(product, Convolution):
        return tiles_for_convolution(target, product)
    return tiles_for(target, product.batch, product.rows, product.columns, product.depth)


def told(tiles: Tiles, packs: bool) -> str:
    """What reports say of an operator that a template computes."""
    how = "weight packed" if packs else "right side as it lies"
    return f"{TEMPLATE}: {tiles.rows} x {tiles.columns} tiles, {how}"
