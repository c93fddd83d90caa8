# SPDX-License-Identifier: Apache-2.0
"""Code that the rules of the data movement family share.

An operator of the family computes nothing: each element of its result is an element of its operand. So it may
exchange positions with operators before and after it, and it can be dropped if it moves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import relax

from ...graph.extent import Extent, same_shape
from .operators import operator_name
from .rules import Match
from .views import RESHAPES, permutation, shape_of

PERMUTE = "relax.permute_dims"
PAD = "relax.nn.pad"
SPLIT = "relax.split"

MOVES = (*RESHAPES, PERMUTE, "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")
"""Operators that only move elements of one tensor, in an order that the scale of a quantized tensor keeps.

The maximum of a window is one of them too, because scales are positive.
"""

COPIES = ("relax.broadcast_to", "relax.astype", PERMUTE, "relax.reshape")
"""Operators that may return their operand unchanged."""


def moved(match: Match, value: relax.Expr, operators: Collection[str]) -> tuple[relax.Expr, list[relax.Call]]:
    """Return the source of a value that ``operators`` move, and the calls that move it, in order.

    The value is one of the function after.
    """
    moves: list[relax.Call] = []
    while (call := match.definition(value)) is not None and operator_name(call) in operators:
        moves.append(call)
        value = call.args[0]
    return value, moves[::-1]


def moved_again(match: Match, value: relax.Expr, moves: Sequence[relax.Call]) -> relax.Expr:
    """Return another value with the same moves."""
    for i, move in enumerate(moves):
        value = match.emit(value) if i else value
        value = relax.Call(move.op, [value, *move.args[1:]], move.attrs, move.ty_args)
    return value


def moves_nothing(call: relax.Call) -> bool:
    """Return True if the result of one of :data:`COPIES` is its operand."""
    name = operator_name(call)
    if str(call.args[0].ty.dtype) != str(call.ty.dtype):
        return False
    before, after = shape_of(call.args[0]), shape_of(call)
    if after is None or not same_extents(before, after):
        return False
    return name != PERMUTE or permutation(call, len(after)) == list(range(len(after)))


def same_extents(left: Sequence[Extent] | None, right: Sequence[Extent] | None) -> bool:
    """Return True if two shapes are known and equal."""
    return left is not None and right is not None and same_shape(left, right)
