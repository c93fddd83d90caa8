# SPDX-License-Identifier: Apache-2.0
"""Sums of products over a reduction. Vectors run along the columns of the tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from .... import compat
from ....codegen import builder as B
from ....codegen.cpu.columns import count_of
from ....compat import Buffer, Expr
from ....cost.choices import Choices
from ....graph.extent import Extent, flatten, is_number, unflatten
from ..dot_instruction import DotInstruction
from .loops import in_groups, nested, sequential
from .prefetch import Ahead
from .reduction_blocks import ReductionBlocks
from .tile import Tile

Term = Callable[[int, list[Expr], Expr], Expr]
"""Maps a row, the coordinates of the reduction and a column to the product that the sum gets."""

Groups = Callable[[int, list[Expr], Expr], tuple[Expr, Expr]]
"""Maps a row, a reduction step and a column to the groups that an instruction multiplies.

These are the row's group, and the groups of a vector of columns from that column on.
"""

Guard = Callable[[list[Expr]], Expr]
"""Maps the coordinates of all reduction loops but the innermost one to a condition. If it is false, all terms are 0."""


def emit_sums(
    rows: int,
    width: int,
    lanes: int,
    reduction: Sequence[Extent],
    term: Term | tuple[DotInstruction, Groups],
    choices: Choices,
    dtype: str = "float32",
    unrolled: int = 0,
    block: tuple[ReductionBlocks, Expr] | None = None,
    ahead: Ahead | None = None,
    whole: bool = False,
    guard: Guard | None = None,
) -> list[Buffer]:
    """Emit ``rows`` x ``width`` sums over the loops of ``reduction``, and return a buffer for each row.

    Args:
        rows, width: size of the tile. ``width`` is a multiple of ``lanes``, or less.
        lanes: elements of a vector.
        reduction: extents of the reduction loops, outermost first.
        term: a product, from a row of the tile, the loops' variables, and a column of the tile. Or an instruction
            and its groups, if ``reduction`` counts groups.
        choices: the device's constants of choice.
        dtype: type of the sums.
        unrolled: number of innermost loops that are unrolled.
        block: the only block of the reduction to sum, if not all of it.
        ahead: the prefetch of the weights that are read next.
        whole: whether the code here and behind treats a row as a single vector.
        guard: the condition under which the innermost loop has other terms than 0, if no loop is unrolled.
    """
    tile = Tile(rows, width, width if whole else min(lanes, width), dtype)
    sums = tile.buffers("sums")
    tile.clear(sums)
    if any(is_number(extent, 0) for extent in reduction):
        return sums
    before: list[Expr] = []
    loops = list(reduction)
    if block is not None:
        blocks, number = block
        *before, block_of_loop = unflatten(number, blocks.divided)
        first = block_of_loop * B.i64(blocks.step)
        loops = [count_of(reduction[blocks.level], blocks.step, first), *reduction[blocks.level + 1 :]]
    kinds = ["serial"] * (len(loops) - unrolled) + ["unroll"] * unrolled

    def of_all(at: list[Expr]) -> list[Expr]:
        return at if block is None or not at else [*before, first + at[0], *at[1:]]

    @contextmanager
    def outer_loops() -> Iterator[list[Expr]]:
        with ExitStack() as stack:
            outer = stack.enter_context(nested(zip(kinds[:-1], loops[:-1])))
            if guard is not None:
                stack.enter_context(B.when(guard(of_all(outer) or before)))
            yield outer

    def step(at: list[Expr], to: list[Buffer] = sums) -> None:
        coordinates = of_all(at)
        if isinstance(term, tuple):
            instruction, groups = term
            tile.each_vector(
                to,
                lambda i, c, so_far: instruction.add(so_far, *groups(i, coordinates, c)),
                instruction.lanes,
            )
        else:
            tile.each(to, lambda i, c: compat.load(to[i], [c]) + term(i, coordinates, c))

    chains = chains_of(rows, -(-width // lanes), choices)
    if chains > 1 and not unrolled:
        more = [tile.buffers(f"chain{n}_") for n in range(1, chains)]
        for each in more:
            tile.clear(each)
        with outer_loops() as outer:
            sequential(loops[-1], [sums, *more], lambda k, to: step([*outer, k], to))
        tile.each(
            sums, lambda i, c: sum((compat.load(each[i], [c]) for each in more), compat.load(sums[i], [c]))
        )
        return sums
    if unrolled or (ahead is None and guard is None):
        with nested(zip(kinds, loops)) as at:
            step(at)
        return sums
    with outer_loops() as outer:
        if ahead is None:
            with nested([(kinds[-1], loops[-1])]) as (k,):
                step([*outer, k])
            return sums
        in_groups(
            loops[-1],
            lambda k: step([*outer, k]),
            lambda k: ahead.emit(flatten([*outer, k], loops)),
            ahead.between,
            unrolled_steps(rows * -(-width // lanes), choices, ahead.between),
        )
    return sums


def unrolled_steps(vectors: int, choices: Choices, most: int) -> int:
    """Return how many steps, at most ``most``, of a loop that adds to so many vectors are emitted together."""
    steps = most
    while steps > 1 and steps * vectors > choices.unrolled_vectors:
        steps //= 2
    return steps


def chains_of(rows: int, vectors: int, choices: Choices) -> int:
    """Return the number of independent partial sums of each element, over interleaved steps of the reduction.

    The few sums of a small tile would wait for each other's additions.
    """
    chains = 1
    while 2 * chains * rows * vectors <= choices.sum_vectors_in_flight:
        chains *= 2
    return chains
