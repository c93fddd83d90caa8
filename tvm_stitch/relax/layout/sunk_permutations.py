# SPDX-License-Identifier: Apache-2.0
"""SinkPermutations: transpose what is reduced of a tensor, not the tensor.

``ConvertLayout`` stops at reshapes. A model that divides the channels into groups and reduces these (split attention,
channel shuffles) then transposes its images in front of the reshape. The kernel reads them across memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import tvm
from tvm import relax

from ...cost.choices import Choices
from ...graph.extent import Extent, is_static, product
from ...support.module_pass import module_pass
from ..rewriting.movement import PERMUTE
from ..rewriting.operators import ELEMENTWISE, operator_name
from ..rewriting.readers import reader_name
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import permutation, shape_of
from .permutations import inverse

REDUCTIONS = tuple(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod"))
POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
"""Reductions of windows, of images whose layout is an attribute."""
RESHAPE = "relax.reshape"


@module_pass
class SinkPermutations:
    """Sink transpositions through reshapes, element-wise operators and reductions, if reductions alone follow.

    ``sum(reshape(permute_dims(x)))`` becomes ``permute_dims(sum(reshape(x)))``, if the reshape divides axes of the
    transposed tensor and joins none. The other operands of an element-wise operator are smaller than its result, or
    are transposed alike. The first operator that a transposition passes is a reshape or a pool.

    Runs before ``PropagatePermutations`` and ``LegalizeOps``.

    Args:
        choices: the device's constants of choice.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        rule = Rule(
            "fewer elements are transposed behind a reduction",
            lambda match: _sunk(match, self.choices),
            (RESHAPE, *ELEMENTWISE, *REDUCTIONS, *POOLS),
            needs=((PERMUTE,), (*REDUCTIONS, *POOLS)),
            leaves_unused=True,
        )
        return apply_rules(mod, [rule], unique_names=True)


def _sunk(match: Match, choices: Choices) -> relax.Expr | None:
    """Return the transposition of the operator on its operands before theirs, or None."""
    name, call = match.name, match.value
    if not isinstance(match.block, relax.DataflowBlock):
        return None
    sources = [_transposed(match, arg) for arg in call.args]
    if not any(sources) or not _has_static_shape(call):
        return None
    operands = [arg for arg, source in zip(match.before.args, sources, strict=True) if source is not None]
    if not all(_is_reduced(match, arg, choices.sunk_operators) for arg in operands):
        return None
    if name not in (RESHAPE, *POOLS) and not all(arg in match.notes for arg in operands):
        return None  # a kernel of rows transposes what it reduces as it loads it
    if name in REDUCTIONS:
        sunk = _reduced(match, call, sources[0])
    elif name in POOLS:
        sunk = _pooled(match, call, sources[0])
    elif name == RESHAPE:
        sunk = _reshaped(match, call, sources[0])
    else:
        sunk = _elementwise(match, call, sources, choices)
    if sunk is not None:
        match.notes[match.var] = True
    return sunk


def _has_static_shape(value: relax.Expr) -> bool:
    shape = shape_of(value)
    return shape is not None and is_static(shape)


_Transposed = tuple[relax.Expr, list[int]]
"""The operand of a transposition, and its order of axes."""


def _transposed(match: Match, arg: relax.Expr) -> _Transposed | None:
    definition = match.definition(arg)
    if definition is None or operator_name(definition) != PERMUTE or not _has_static_shape(definition):
        return None
    return definition.args[0], permutation(definition, len(shape_of(definition) or ()))


def _is_reduced(match: Match, var: relax.Expr, most: int) -> bool:
    """Return whether only reductions read a value: itself, or what at most ``most`` operators compute of it.

    If anything else reads it, the tensor is transposed anyway, and one kernel reduces and uses it.
    """
    for reader in match.readers.get(var, [None]):
        name = reader_name(reader)
        if name in REDUCTIONS or name in POOLS:
            continue
        if not most or not (name == RESHAPE or name in ELEMENTWISE):
            return False
        if not _is_reduced(match, reader.var, most - 1):
            return False
    return True


def _reshaped(match: Match, call: relax.Call, source: _Transposed | None) -> relax.Expr | None:
    assert source is not None
    value, axes = source
    before, after = shape_of(call.args[0]), shape_of(call)
    groups = divided(before or (), after or ())
    if groups is None:
        return None
    position = inverse(axes)  # of each axis of the source behind the transposition
    shape = [extent for at in position for extent in groups[at]]
    start = [0, *accumulate(len(groups[at]) for at in position)]
    order = [start[axis] + n for at, axis in enumerate(axes) for n in range(len(groups[at]))]
    return relax.op.permute_dims(match.emit(relax.op.reshape(value, shape)), order)


def divided(before: Sequence[Extent], after: Sequence[Extent]) -> list[list[Extent]] | None:
    """Return the extents after a reshape that each extent before is divided into, None if the reshape joins extents."""
    rest, groups = list(after), list[list[Extent]]()
    for extent in before:
        group: list[Extent] = []
        while product(group) != extent or not group:
            if not rest or product(group) == 0:
                return None
            group.append(rest.pop(0))
        groups.append(group)
    if any(extent != 1 for extent in rest) or not groups:
        return None
    groups[-1] += rest
    return groups


def _elementwise(
    match: Match, call: relax.Call, sources: Sequence[_Transposed | None], choices: Choices
) -> relax.Expr | None:
    shape = shape_of(call) or ()
    size, order = product(shape), None
    assert isinstance(size, int)
    for arg, source in zip(call.args, sources, strict=True):
        if source is not None and shape_of(arg) == shape:
            order = order or source[1]
    if order is None:
        return None
    back = inverse(order)
    args = []
    for arg, source in zip(call.args, sources, strict=True):
        own = shape_of(arg)
        if own is None:
            return None
        if source is not None and source[1] == order:
            args.append(source[0])
        elif not own or all(extent == 1 for extent in own):
            args.append(arg)
        elif len(own) == len(shape) and _is_small(own, size, choices):
            args.append(match.emit(relax.op.permute_dims(arg, back)))
        else:
            return None
    result = match.emit(relax.Call(call.op, args, call.attrs, call.ty_args), str(match.var.name))
    return relax.op.permute_dims(result, order)


def _is_small(own: Sequence[Extent], size: int, choices: Choices) -> bool:
    elements = product(own)
    return isinstance(elements, int) and elements <= choices.small_operand_share * size


def _reduced(match: Match, call: relax.Call, source: _Transposed | None) -> relax.Expr | None:
    assert source is not None
    value, axes = source
    rank = len(axes)
    reduced = range(rank) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
    keeps = bool(call.attrs.keepdims)
    operator = getattr(relax.op, match.name.removeprefix("relax."))
    reduced_value = match.emit(
        operator(value, sorted(axes[axis] for axis in reduced), keeps), str(match.var.name)
    )
    left = axes if keeps else [axis for position, axis in enumerate(axes) if position not in set(reduced)]
    order = [sorted(left).index(axis) for axis in left]
    return reduced_value if order == sorted(order) else relax.op.permute_dims(reduced_value, order)


def _pooled(match: Match, call: relax.Call, source: _Transposed | None) -> relax.Expr | None:
    assert source is not None
    value, axes = source
    layout = str(call.attrs.layout)
    if layout != "NCHW" or str(call.attrs.out_layout) != layout or sorted(axes) != list(range(len(layout))):
        return None
    moved = "".join(layout[axis] for axis in inverse(axes))
    if moved != "NHWC":
        return None
    options = {key: getattr(call.attrs, key) for key in ("pool_size", "strides", "padding", "dilation")}
    options |= {key: bool(getattr(call.attrs, key)) for key in ("ceil_mode", "count_include_pad")}
    operator = getattr(relax.op.nn, operator_name(call).rpartition(".")[2])
    return relax.op.permute_dims(
        match.emit(operator(value, layout=moved, **options), str(match.var.name)), axes
    )
