# SPDX-License-Identifier: Apache-2.0
"""Templates for compute-intensive operators: where there are any, their tiles, and what is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import StitchConfig
from .anchored import are_served
from .contraction import Contraction
from .convolution import Convolution
from .cpu.convolution_tiles import tiles_for_convolution
from .cpu.dot_instruction import dot_instruction, prefers_unsigned
from .cpu.tiles import Tiles, lanes_of, tiles_for

TEMPLATE = "our template"


def has_templates(target: Any, config: StitchConfig) -> bool:
    """Return whether templates compute operators for a target: on CPUs, unless TVM's schedules are asked for."""
    return (
        target is not None and target.kind.name == "llvm" and not {"matmul", "convolution"} <= config.of_tvm
    )


def why_no_integers(target: Any, config: StitchConfig, kind: str, dtypes: tuple[str, str]) -> str:
    """Why no template computes products of integers of these types better than those of floats; "" where one does.

    Args:
        target: a TVM target.
        config: stitching options.
        kind: ``"matmul"`` or ``"convolution"``.
        dtypes: of the data and of the weight.
    """
    if not has_templates(target, config) or kind in config.of_tvm:
        return "TVM's schedules compute it"
    if not are_served(*dtypes, "int32"):
        return f"no template multiplies {dtypes[0]} by {dtypes[1]}"
    if dot_instruction(target, dtypes, lanes_of(target)) is None:
        return "the CPU multiplies no groups of integers"
    return ""


def multiplies_unsigned(target: Any) -> bool:
    """Return whether a CPU's templates are fastest with data of uint8."""
    return prefers_unsigned(target, lanes_of(target))


def tiles_of(target: Any, product: Contraction | Convolution) -> Tiles:
    """Return the tiles of an operator on a CPU."""
    if isinstance(product, Convolution):
        tiles = tiles_for_convolution(target, product)
        left, right = product.data.source, product.weight
    else:
        tiles = tiles_for(target, product.batch, product.rows, product.columns, product.depth)
        left, right = product.left, product.right
    instruction = dot_instruction(target, (left.dtype, right.dtype), min(tiles.lanes, tiles.columns))
    if instruction is None or not _has_groups(product, instruction.group):
        return tiles
    return replace(tiles, instruction=instruction)


def _has_groups(product: Contraction | Convolution, group: int) -> bool:
    """Return whether neighbours of the depth can be multiplied so many at once."""
    if not isinstance(product, Convolution):
        return isinstance(product.depth, int)
    # The last channels of a group of a convolution's lie beside another group's.
    return not product.is_depthwise and (product.groups == 1 or product.inputs % group == 0)


def told(tiles: Tiles, packs: bool) -> str:
    """What reports say of an operator that a template computes."""
    how = "weight packed" if packs else "right side as it lies"
    if packs and tiles.instruction is not None:
        how += f", {tiles.group} products of {tiles.instruction.right} an instruction"
    return f"{TEMPLATE}: {tiles.rows} x {tiles.columns} tiles, {how}"
