# SPDX-License-Identifier: Apache-2.0
"""Pack a panel of a product's right side for AMX, in each task, for right sides that are no constants.

A step of the panel has a group of neighbours of the reduction dimension for each column. If columns are contiguous,
groups are words of four bytes, and the matrix of words is transposed in registers. Otherwise the rows of a group are
interleaved.
"""

from __future__ import annotations

from .... import compat
from ....codegen import builder as B
from ....codegen.cpu.tasks import times
from ....codegen.cpu.transpose import MatrixRows, side_of, transpose
from ....compat import Buffer, Expr, T, tir
from ...contraction import Contraction
from ..data_block import elements
from ..dot_instruction import vector
from .instruction import COLUMNS, TILE_ROWS, TileInstruction


def pack_panel(
    product: Contraction,
    right: Buffer,
    matrix: Expr,
    start: Expr,
    stored: int,
    panel: Buffer,
    instruction: TileInstruction,
    lanes: int,
) -> None:
    """Emit the packing of a panel. The last steps are padded with zeros, and other columns are left as they are.

    Args:
        product: the product, whose columns and reduction are static.
        right: flat view of its right side.
        matrix: index of the matrix in the right side.
        start: first column of the panel.
        stored: columns of the panel.
        panel: ``[steps * COLUMNS * group]`` elements, where ``steps`` is a multiple of the rows of a tile.
        instruction: the instruction that reads the panel.
        lanes: elements of four bytes of a vector.
    """
    group, depth, columns = instruction.group, product.reduction, product.columns
    assert isinstance(depth, int) and isinstance(columns, int)
    dtype = compat.buffer_dtype(panel)
    bits = compat.view(right, list(right.shape), f"{right.name}_bits", dtype)
    whole, step = depth // group, COLUMNS * group
    rest = (instruction.steps(depth) * TILE_ROWS - whole) * step
    if rest:
        zero, end = compat.const(0, dtype), B.i64(whole * step)
        elements(B.i64(rest), 64, lambda at: B.store(panel, zero, [end + at]))
    if product.transposed:
        begin = B.bind((matrix * B.i64(columns) + start) * B.i64(depth), "begin")
        if depth % group == 0 and depth:
            words = B.words_of(right)
            source = MatrixRows(words, tir.floordiv(begin, B.i64(group)), B.i64(whole))
            to = MatrixRows(B.words_of(panel), B.i64(0), B.i64(COLUMNS))
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
