# SPDX-License-Identifier: Apache-2.0
"""PermutedReshapes: let transpositions meet that a reshape separates.

A vision transformer flattens an image with channels second and transposes it to rows of channels. Around convolutions
it does the reverse. A convolution with channels last has a second transposition, and the two move nothing together.
``PropagatePermutations`` does not see that, because a reshape lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax

from ...cost.choices import Choices
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, is_number, product, same
from ...support.module_pass import module_pass
from ..rewriting.contents import contents_of
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import ELEMENTWISE, operator_name
from ..rewriting.readers import reader_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, permutation, shape_of
from .permutations import PropagatePermutations

Group = tuple[list[int], list[int]]
"""The axes before a reshape and the axes after it that hold the same elements."""


@module_pass
class PermutedReshapes:
    """Sink a transposition through a reshape, or hoist it, towards the operators that the other side transposes.

    ``reshape(permute_dims(x))`` becomes ``permute_dims(reshape(x))`` if a transposition or an element-wise operator
    reads the result. The reshape must divide or join only axes that are neighbours in ``x``.
    ``permute_dims(reshape(x))`` becomes ``reshape(permute_dims(x))`` if element-wise operators compute ``x`` from a
    transposition. The axes of each divided or joined axis must stay neighbours.

    Runs before ``PropagatePermutations``, which drops transpositions that move nothing. The module stays as it was if
    that pass would leave no fewer bytes to be transposed. Later passes know products whose operands are transposed
    behind a reshape.

    Args:
        choices: the device's constants of choice.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        rule = Rule(
            "two transpositions may be none",
            _exchanged,
            (PERMUTE, *RESHAPES, *ELEMENTWISE),
            needs=((PERMUTE,), RESHAPES),
            leaves_unused=True,
        )
        made = apply_rules(mod, [rule], unique_names=True)
        if made is mod or _transposed_bytes(made, self.choices) >= _transposed_bytes(mod, self.choices):
            return mod
        return made


def _transposed_bytes(mod: tvm.IRModule, choices: Choices) -> int:
    """Return the bytes that are transposed behind ``PropagatePermutations``. A symbolic extent counts as 1."""
    sizes = 0
    for func in tvm.transform.Sequential([PropagatePermutations(choices)])(mod).functions.values():
        for call in contents_of(func).get(PERMUTE, ()) if isinstance(func, relax.Function) else ():
            extents = [extent for extent in shape_of(call) or () if isinstance(extent, int)]
            if not isinstance(call.args[0], tvm.ir.GenericConst):
                sizes += item_bytes(str(call.ty.dtype)) * math.prod(extents)
    return sizes


def _exchanged(match: Match) -> relax.Expr | None:
    """Return the value with its reshape and its transposition exchanged, or None.

    The matches' notes hold the values that are computed from transpositions.
    """
    name, call = match.name, match.before
    if not isinstance(match.block, relax.DataflowBlock):
        return None
    if name == PERMUTE or any(arg in match.notes for arg in call.args if isinstance(arg, relax.Var)):
        match.notes[match.var] = True
    if name == PERMUTE:
        return _hoisted(match) if call.args[0] in match.notes else None
    if name in RESHAPES and _meets_others(match, match.var):
        return _sunk(match)
    return None


def _meets_others(match: Match, var: relax.Var) -> bool:
    """Return whether a transposition or an element-wise operator reads a value, as it is or through reshapes."""
    for reader in match.readers.get(var, [None]):
        name = reader_name(reader)
        if name == PERMUTE or name in ELEMENTWISE:
            return True
        if name in RESHAPES and reader is not None and _meets_others(match, reader.var):
            return True
    return False


def _sunk(match: Match) -> relax.Expr | None:
    """Return the transposition of a reshape in place of the reshape of a transposition."""
    call = match.value
    moved = match.definition(call.args[0])
    if moved is None or operator_name(moved) != PERMUTE:
        return None
    others = match.readers.get(match.before.args[0], [None])
    if any(reader_name(reader) not in (PERMUTE, *RESHAPES) for reader in others):
        return None  # it is transposed anyway
    source, before, after = moved.args[0], shape_of(call.args[0]), shape_of(call)
    groups = _groups_of(before, after)
    if groups is None or after is None:
        return None
    axes = permutation(moved, len(before or ()))
    while (earlier := match.definition(source)) is not None and operator_name(earlier) == PERMUTE:
        inner = permutation(earlier, len(axes))
        source, axes = earlier.args[0], [inner[axis] for axis in axes]
    if axes == sorted(axes):
        return relax.op.reshape(source, list(after))
    placed = [([axes[axis] for axis in ins], outs) for ins, outs in groups]
    if not all(_are_neighbours(ins) for ins, _ in placed):
        return None
    order = _in_order(placed)
    divided = match.emit(relax.op.reshape(source, [after[axis] for axis in order]))
    return relax.op.permute_dims(divided, [order.index(axis) for axis in range(len(order))])


def _hoisted(match: Match) -> relax.Expr | None:
    """Return the reshape of a transposition in place of the transposition of a reshape."""
    call = match.value
    moved = match.definition(call.args[0])
    if moved is None or operator_name(moved) not in RESHAPES:
        return None
    source, after = moved.args[0], shape_of(call)
    groups = _groups_of(shape_of(source), shape_of(call.args[0]))
    if groups is None or after is None:
        return None
    axes = permutation(call, len(after))
    placed = [([axes.index(axis) for axis in outs], ins) for ins, outs in groups]
    if not all(_are_neighbours(outs) for outs, _ in placed):
        return None
    order = _in_order(placed)
    return relax.op.reshape(match.emit(relax.op.permute_dims(source, order)), list(after))


def _in_order(placed: Sequence[Group]) -> list[int]:
    """Return the second axes of each group, sorted by the first ones.

    Axes of extent 1 without a first axis are in front of those of the next group, or behind those of the last one.
    """
    sorted_groups: list[Group] = []
    alone: list[int] = []
    for at, axes in placed:
        if at:
            sorted_groups.append((at, [*alone, *axes]))
            alone = []
        else:
            alone += axes
    if sorted_groups:
        sorted_groups[-1][1].extend(alone)
    return [axis for _, axes in sorted(sorted_groups) for axis in axes] or alone


def _are_neighbours(axes: Sequence[int]) -> bool:
    return all(axis == axes[0] + n for n, axis in enumerate(axes))


def _groups_of(before: Sequence[Extent] | None, after: Sequence[Extent] | None) -> list[Group] | None:
    """Return the smallest groups of axes before and after a reshape with equal numbers of elements, in order.

    An axis of extent 1 may be a group alone, with nothing on the other side. None for unknown extents, for extents of
    0, and for symbolic axes that are divided or joined.
    """
    if before is None or after is None or any(is_number(extent, 0) for extent in (*before, *after)):
        return None
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs = [i] if i < len(before) else [], [j] if j < len(after) else []
        if not (ins and outs and same(before[i], after[j])):
            if ins and is_number(before[i], 1):
                outs = []
            elif outs and is_number(after[j], 1):
                ins = []
            elif not _completed(ins, outs, before, after):
                return None
        groups.append((ins, outs))
        i, j = i + len(ins), j + len(outs)
    return groups


def _completed(ins: list[int], outs: list[int], before: Sequence[Extent], after: Sequence[Extent]) -> bool:
    """Add axes to both sides of a group until they have equal numbers of elements. Return False if they never do."""
    while ins and outs:
        least, most = product([before[axis] for axis in ins]), product([after[axis] for axis in outs])
        if not (isinstance(least, int) and isinstance(most, int)):
            return False
        if least == most:
            return True
        axes, extents = (ins, before) if least < most else (outs, after)
        if axes[-1] + 1 == len(extents):
            return False
        axes.append(axes[-1] + 1)
    return False
