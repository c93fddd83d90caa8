# SPDX-License-Identifier: Apache-2.0
"""Pack a panel of a product's right side in each task, for right sides that are no constants.

A step of the panel has a group of neighbours of the reduction dimension for each column. If columns are contiguous,
groups are words of four bytes, and the matrix of words is transposed in registers. Otherwise the rows of a group are
interleaved.

Without an instruction, a panel of contiguous columns may be copied, so that vectors run along columns.
"""

from __future__ import annotations

from .... import compat
from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....codegen.cpu.transpose import MatrixRows, side_of, transpose
from ....compat import Buffer, Expr, T, tir
from ....graph.extent import as_expr
from ...contraction import Contraction
from ..data_block import elements
from ..dot_instruction import BITS, vector
from ..factors import widened
from ..tiles import Tiles


def is_copied(product: Contraction, tiles: Tiles, width: int) -> bool:
    """Return whether tasks copy panels of ``width`` columns, so that vectors run along columns."""
    p, choices = product, tiles.choices
    if tiles.instruction is not None or not p.transposed or not isinstance(p.columns, int):
        return False
    if not isinstance(p.reduction, int) or not 0 < p.reduction * width <= choices.copied_panel_elements:
        return False
    if p.reduction > choices.short_reduction and not p.left_transposed:
        return False
    return (
        isinstance(p.rows, int) and min(p.rows, tiles.task_rows) >= choices.least_tiles_of_copy * tiles.rows
    )


def copy_panel(
    product: Contraction, right: Buffer, matrix: Expr, start: Expr, width: int, panel: Buffer, lanes: int
) -> None:
    """Emit the copy of ``width`` columns, from ``start`` on, to ``panel``. It has ``width`` elements of each step.

    Args:
        product: the product, whose reduction is static and whose right side is stored as columns.
        right: flat view of its right side.
        matrix: index of the matrix in the right side.
        start: first column of the panel.
        width: columns of the panel.
        panel: ``[reduction * width]`` elements of the type of the sums.
        lanes: elements of four bytes of a vector.
    """
    summed, reduction = product.summed, product.reduction
    assert isinstance(reduction, int)
    begin = (matrix * as_expr(product.columns) + start) * B.i64(reduction)
    side = side_of(lanes, width, reduction) if product.right.dtype == summed else 1
    to = MatrixRows(panel, B.i64(0), B.i64(width))
    source = MatrixRows(right, begin, B.i64(reduction))
    transpose(
        source, to, width, reduction, side, lambda value: widened(value, summed) if side == 1 else value
    )


def panel_steps(product: Contraction, tiles: Tiles) -> int:
    """Return the steps of a panel: groups of the reduction dimension, a multiple of those of an instruction."""
    assert isinstance(product.reduction, int)
    return -(-product.reduction // (tiles.group * tiles.at_once)) * tiles.at_once


def panel_dtype(tiles: Tiles) -> str:
    """Return the type of a panel's elements."""
    assert tiles.instruction is not None
    return BITS if tiles.instruction.right == "bfloat16" else tiles.instruction.right


def pack_panel(
    product: Contraction, right: Buffer, matrix: Expr, start: Expr, stored: int, panel: Buffer, tiles: Tiles
) -> None:
    """Emit the packing of a panel. The last steps are padded with zeros, and other columns are left as they are.

    Args:
        product: the product, whose columns and reduction are static.
        right: flat view of its right side.
        matrix: index of the matrix in the right side.
        start: first column of the panel.
        stored: columns of the panel.
        panel: ``[panel_steps * tiles.columns * tiles.group]`` elements, as wide as those of the right side.
        tiles: the instruction that reads the panel, and the columns of the panel.
    """
    group, depth, columns, lanes = tiles.group, product.reduction, product.columns, tiles.lanes
    assert isinstance(depth, int) and isinstance(columns, int)
    dtype = compat.buffer_dtype(panel)
    bits = compat.view(right, list(right.shape), f"{right.name}_bits", dtype)
    whole, step = depth // group, tiles.columns * group
    rest = (panel_steps(product, tiles) - whole) * step
    if rest:
        zero, end = compat.const(0, dtype), B.i64(whole * step)
        elements(B.i64(rest), 64, lambda at: B.store(panel, zero, [end + at]))
    if product.transposed:
        begin = B.bind((matrix * B.i64(columns) + start) * B.i64(depth), "begin")
        if depth % group == 0 and depth:
            words = B.words_of(right)
            source = MatrixRows(words, tir.floordiv(begin, B.i64(group)), B.i64(whole))
            to = MatrixRows(B.words_of(panel), B.i64(0), B.i64(tiles.columns))
            transpose(source, to, stored, whole, side_of(lanes, stored, whole))
            return
        with times("serial", stored, "c") as c, times("serial", depth, "k") as k:
            at = (
                tir.floordiv(k, B.i64(group)) * B.i64(step) + c * B.i64(group) + tir.floormod(k, B.i64(group))
            )
            B.store(panel, B.fetch(bits, begin + c * B.i64(depth) + k), [at])
        return
    begin = B.bind(matrix * B.i64(depth * columns) + start, "begin")
    with times("serial", whole, "step") as number:
        at = begin + number * B.i64(group * columns)
        rows = [compat.load(bits, [_positions(at + B.i64(i * columns), stored)]) for i in range(group)]
        order = [compat.const(i * stored + c, "int32") for c in range(stored) for i in range(group)]
        T.buffer_store(panel, tir.Shuffle(rows, order), [vector(number * B.i64(step), stored * group)])
    for k in range(whole * group, depth):
        with times("serial", stored, "c") as c:
            to_rest = B.i64(whole * step + k % group) + c * B.i64(group)
            B.store(panel, B.fetch(bits, begin + B.i64(k * columns) + c), [to_rest])


def _positions(first: Expr, count: int) -> Expr:
    """Return the indices of ``count`` neighbours, or the index itself for a single one."""
    return vector(first, count) if count > 1 else first
