# SPDX-License-Identifier: Apache-2.0
"""Templates for compute-intensive operators: availability, tiles, and their description in reports."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..config import StitchConfig
from ..cost.choices import Choices
from .anchored import are_served
from .contraction import Contraction
from .convolution import Convolution
from .cpu.amx.instruction import TileInstruction, tile_instruction
from .cpu.convolution_tiles import tiles_for_convolution
from .cpu.dot_instruction import DotInstruction, dot_instruction, prefers_unsigned
from .cpu.tiles import Tiles, lanes_of, matrix_tiles_for, tiles_for

if TYPE_CHECKING:
    from tvm.target import Target

TEMPLATE = "our template"


def has_templates(target: Target, config: StitchConfig) -> bool:
    """Return whether templates compute operators for a target: on CPUs, unless the config selects TVM's schedules."""
    return (
        target is not None and target.kind.name == "llvm" and not {"matmul", "convolution"} <= config.of_tvm
    )


def why_no_integers(target: Target, config: StitchConfig, kind: str, dtypes: tuple[str, str]) -> str:
    """Return the reason why no template computes products of these integers better than those of floats.

    The reason is empty if a template does.

    Args:
        target: a TVM target.
        config: stitching options.
        kind: ``"matmul"`` or ``"convolution"``.
        dtypes: types of the data and of the weight.
    """
    if not has_templates(target, config) or kind in config.of_tvm:
        return "TVM's schedules compute it"
    if not are_served(*dtypes, "int32"):
        return f"no template multiplies {dtypes[0]} by {dtypes[1]}"
    if dot_instruction(target, dtypes, lanes_of(target)) is None:
        return "the CPU multiplies no groups of integers"
    return ""


def multiplies_unsigned(target: Target) -> bool:
    """Return whether a CPU's templates are fastest with data of uint8."""
    return prefers_unsigned(target, lanes_of(target))


def tiles_of(
    target: Target, choices: Choices, product: Contraction | Convolution, packs: bool = True
) -> Tiles:
    """Return the tiles of an operator on a CPU. ``packs``: its weight is a constant, packed for an instruction."""
    if not isinstance(product, Convolution) and (of_matrix := _matrix_tiles(target, choices, product, packs)):
        return of_matrix
    if isinstance(product, Convolution):
        tiles = tiles_for_convolution(target, choices, product)
        left, right = product.data.source, product.weight
    else:
        tiles = tiles_for(target, choices, product.batch, product.rows, product.columns, product.reduction)
        left, right = product.left, product.right
    instruction = dot_instruction(target, (left.dtype, right.dtype), min(tiles.lanes, tiles.columns))
    if instruction is None:
        return tiles
    if packs:
        return replace(tiles, instruction=instruction) if _has_groups(product, instruction.group) else tiles
    if isinstance(product, Convolution) or instruction.right != "bfloat16":
        return tiles
    return _tiles_of_pairs(target, choices, product, instruction) or tiles


def _tiles_of_pairs(
    target: Target, choices: Choices, product: Contraction, instruction: DotInstruction
) -> Tiles | None:
    """Return the tiles of a product by an instruction for groups if the right side is no constant, or None.

    Each task packs the right side if enough rows read it. Otherwise vectors run along the reduction, if it is
    contiguous in both factors. None if it is not.
    """
    extents = product.batch, product.rows, product.columns, product.reduction
    if _packs_panels(choices, product):
        return tiles_for(target, choices, *extents, instruction, packs_panels=True)
    if not product.transposed or product.left_transposed or product.left.dtype != instruction.reads:
        return None
    return tiles_for(target, choices, *extents, replace(instruction, along=True))


def _packs_panels(choices: Choices, product: Contraction) -> bool:
    """Return whether so many rows read the right side that each task is to pack it for an instruction."""
    rows, reduction = product.rows, product.reduction
    if not isinstance(rows, int) or not isinstance(product.columns, int) or not isinstance(reduction, int):
        return False
    if not product.transposed or product.left_transposed:
        return rows >= choices.panel_fewest_rows
    if reduction <= choices.panel_short_reduction:
        return rows >= choices.panel_fewest_rows_of_short
    return rows >= choices.panel_fewest_rows_along


def _matrix_tiles(target: Target, choices: Choices, product: Contraction, packs: bool) -> Tiles | None:
    """Return the tiles of a product by an instruction for tiles, or None if there is none or it has too few rows."""
    instruction = tile_instruction(target, (product.left.dtype, product.right.dtype))
    columns, reduction = product.columns, product.reduction
    if instruction is None or not isinstance(columns, int) or not isinstance(reduction, int):
        return None
    fewest = choices.matrix_tiles_fewest_rows
    if instruction.sums == "int32":
        fewest = choices.matrix_tiles_fewest_rows_of_bytes
    if not packs:
        fewest = choices.matrix_tiles_fewest_rows_of_panel
    if isinstance(product.rows, int) and product.rows < fewest:
        return None
    return matrix_tiles_for(
        target, choices, product.batch, product.rows, columns, reduction, instruction, not packs
    )


def _has_groups(product: Contraction | Convolution, group: int) -> bool:
    """Return whether groups of neighbours in the reduction dimension can be multiplied at once."""
    if not isinstance(product, Convolution):
        return isinstance(product.reduction, int)
    # The last channels of a convolution's group are neighbours of another group's.
    return not product.is_depthwise and (product.groups == 1 or product.inputs % group == 0)


def template_note(tiles: Tiles, packs: bool) -> str:
    """Return the text about a template's operator for reports."""
    instruction, by_task = tiles.instruction, tiles.packs_panels
    how = "weight packed" if packs else "right side as it lies"
    if by_task:
        how = "right side in each task packed"
    if isinstance(instruction, TileInstruction):
        how += f", AMX tiles of {instruction.right}"
    elif instruction is not None:
        how += f", {tiles.group} products of {instruction.right} an instruction"
    return f"{TEMPLATE}: {tiles.rows} x {tiles.columns} tiles, {how}"
