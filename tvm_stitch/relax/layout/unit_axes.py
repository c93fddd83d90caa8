# SPDX-License-Identifier: Apache-2.0
"""UnitAxes: write transpositions that move axes of extent 1 as reshapes.

PyTorch decomposes an einsum to matmuls between axes of extent 1, which it adds, transposes and drops. Such operators
hide attention, whose scores have rows and columns last, and make views look like transpositions.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.extent import Extent, is_number, same_shape
from ...support.module_pass import module_pass
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import operator_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, has_elements, permutation, shape_of


@module_pass
class UnitAxes:
    """Rewrite transpositions of reshapes that add axes of extent 1.

    ``permute_dims(reshape(x))`` becomes ``reshape(permute_dims(x))`` with the order of the other axes, or a reshape
    alone if their order stays. A transposition that leaves the axes of extent 1 where they are stays. A reshape behind
    becomes one reshape with it. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        rule = Rule(
            "an axis of extent 1 moves nothing",
            _rewritten,
            (PERMUTE, *RESHAPES),
            needs=((PERMUTE,), RESHAPES),
            leaves_unused=True,
        )
        return apply_rules(mod, [rule], unique_names=True)


def _rewritten(match: Match) -> relax.Expr | None:
    """Return a reshape in place of a transposition, or of a reshape behind such a reshape, or None.

    The matches' notes hold the values that were transpositions.
    """
    if not isinstance(match.block, relax.DataflowBlock):
        return None
    if match.name == PERMUTE:
        made = _moved(match)
    else:
        made = _joined(match) if match.before.args[0] in match.notes else None
    if made is not None:
        match.notes[match.var] = True
    return made


def _without_units(extents: tuple[Extent, ...]) -> list[int]:
    """Return the axes whose extent is not 1."""
    return [axis for axis, extent in enumerate(extents) if not is_number(extent, 1)]


def _reshape_before(match: Match, value: relax.Expr) -> relax.Expr | None:
    """Return the operand of the reshape that makes a value, or None."""
    call = match.definition(value)
    if call is None or operator_name(call) not in RESHAPES or not has_elements(value):
        return None
    return call.args[0] if shape_of(call.args[0]) is not None else None


def _moved(match: Match) -> relax.Expr | None:
    """Return a transposition of a value before axes of extent 1 were added, or a reshape, or None."""
    call = match.value
    before, after = shape_of(call.args[0]), shape_of(call)
    if before is None or after is None:
        return None
    source = _reshape_before(match, call.args[0])
    kept = _without_units(before)
    if source is None or len(kept) == len(before):
        return None
    axes = permutation(call, len(before))
    order = [axis for axis in axes if axis in kept]
    if all(axis in kept or axis == position for position, axis in enumerate(axes)):
        return None  # it moves other axes alone
    if order == kept:
        return relax.op.reshape(source, list(after))
    if not same_shape(shape_of(source) or (), [before[axis] for axis in kept]):
        return None
    axes = [kept.index(axis) for axis in order]
    first = match.definition(source)
    if first is not None and operator_name(first) == PERMUTE:
        source, axes = first.args[0], [permutation(first, len(axes))[axis] for axis in axes]
    if axes != sorted(axes):
        source = match.emit(relax.op.permute_dims(source, axes))
    return relax.op.reshape(source, list(after))


def _joined(match: Match) -> relax.Expr | None:
    """Return one reshape in place of two, or None."""
    call, after = match.value, shape_of(match.value)
    if after is None:
        return None
    source = _reshape_before(match, call.args[0])
    return None if source is None else relax.op.reshape(source, list(after))
