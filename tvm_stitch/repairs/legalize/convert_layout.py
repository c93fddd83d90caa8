# SPDX-License-Identifier: Apache-2.0
"""Keep TVM's ``ConvertLayout`` from operators that it propagates a layout through wrongly.

Layouts go through the operators listed here alone. To ``ConvertLayout`` all others are calls of an unknown function.

TVM has no rule for borders (``R.nn.pad``), at which layouts would stop. A border around images is shown to
``ConvertLayout`` as a pool with windows of one element and padding, which has the same shape.

Its faults differ by operator. Norms of several axes keep their weights as they are, RMS norms lose their last axis,
and ``repeat`` of a flattened tensor repeats another order.

Fault: ``ConvertLayout`` is wrong for norms of several axes, for RMS norms, and for ``repeat`` of a flattened tensor.
    For negative axes it raises, which costs the whole model its layouts.
Seen in: TVM 0.27.0
Input: ``R.repeat(R.nn.conv2d(x, w), 2)`` converted to NHWC
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from ...relax.rewriting.movement import PAD
from ...relax.rewriting.operators import ELEMENTWISE, operator_name
from ...relax.rewriting.rules import CALL, Match, Rule, apply_rules
from ...relax.rewriting.views import shape_of

_REDUCTIONS = "max mean min prod std sum variance"
_OF_CHANNELS = "nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.prelu nn.softmax"
_IMAGES = (
    "image.resize2d image.resize3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d "
    "nn.avg_pool2d nn.avg_pool3d nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d "
    "nn.conv3d_transpose nn.max_pool1d nn.max_pool2d nn.max_pool3d"
)
_MOVEMENT = "concat expand_dims flip permute_dims repeat split squeeze strided_slice tile"

PROPAGATED = ELEMENTWISE | frozenset(
    f"relax.{name}" for name in " ".join((_REDUCTIONS, _OF_CHANNELS, _IMAGES, _MOVEMENT)).split()
)
"""The operators that propagate layouts. For some of them ``PROVISOS`` adds a condition."""


PROVISOS: dict[str, Callable[[relax.Call], bool]] = {
    "relax.nn.layer_norm": lambda call: len(call.attrs.axes) == 1,
    "relax.permute_dims": lambda call: all(int(axis) >= 0 for axis in call.attrs.axes or ()),
    "relax.repeat": lambda call: call.attrs.axis is not None,
    "relax.squeeze": lambda call: all(int(axis) >= 0 for axis in call.attrs.axis or ()),
}
"""By operator, a function that returns True if a call propagates layouts. Operators without an entry always do."""

_POOLS = {3: "max_pool1d", 4: "max_pool2d", 5: "max_pool3d"}
"""By rank, the operator that shows ``ConvertLayout`` a border around images."""
_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
_FIRST = 1 << 20
"""The dilation of the pool that shows the first border. In windows of one element a dilation has no effect."""

_RULE = "FRelaxInferLayout"
_HIDDEN = "tvm_stitch.hidden"


def propagates(call: relax.Call) -> bool:
    """Return True if ``ConvertLayout`` may see a call: it propagates layouts rightly, or TVM has no rule for it."""
    name = operator_name(call)
    if not name or call.op.get_attr(_RULE) is None:
        return True
    return name in PROPAGATED and (name not in PROVISOS or PROVISOS[name](call))


def converted_where_propagated(
    mod: tvm.IRModule, convert: Callable[[tvm.IRModule], tvm.IRModule]
) -> tvm.IRModule:
    """Return ``convert(mod)``, with the operators that do not propagate layouts hidden from ``convert``.

    To ``convert`` such an operator is a call of an unknown function on the same operands. A border is a pool.
    """
    hidden: list[relax.Call] = []
    borders: list[relax.Call] = []

    def unknown(match: Match) -> relax.Expr | None:
        call = match.value
        if _is_around_images(call):
            borders.append(call)
            return _as_pool(call, len(borders) - 1)
        if propagates(call) and _border_number(call) is None:
            return None
        hidden.append(call)
        return relax.op.call_pure_packed(f"{_HIDDEN}.{len(hidden) - 1}", *call.args, ty_args=call.ty)

    def shown(match: Match) -> relax.Expr | None:
        call = match.value
        called = str(call.args[0].global_symbol)
        if not called.startswith(_HIDDEN):
            return None
        before = hidden[int(called.rpartition(".")[2])]
        return relax.Call(before.op, call.args[1:], before.attrs, before.ty_args)

    def padded(match: Match) -> relax.Expr | None:
        number = _border_number(match.value)
        return None if number is None else _in_layout(match.value, borders[number])

    converted = convert(apply_rules(mod, [Rule("TVM's rule for it is wrong, or fails", unknown, (CALL,))]))
    pools = tuple(f"relax.nn.{name}" for name in _POOLS.values())
    why = "the layouts are converted"
    rules = [Rule(why, shown, ("relax.call_pure_packed",)), Rule(why, padded, pools)]
    return apply_rules(converted, rules)


def _is_around_images(call: relax.Call) -> bool:
    """Return whether a call puts a border around images: not around the batch or the channels."""
    if operator_name(call) != PAD or not shape_of(call.args[0]):
        return False
    widths = [int(width) for width in call.attrs.pad_width]
    return len(widths) // 2 in _POOLS and not any(widths[:4]) and min(_added(call)) >= 0


def _added(call: relax.Call) -> list[int]:
    """Return the elements that a border adds to each axis of an image. One side may cut elements off."""
    widths = [int(width) for width in call.attrs.pad_width][4:]
    return [before + after for before, after in zip(widths[::2], widths[1::2], strict=True)]


def _as_pool(call: relax.Call, number: int) -> relax.Call:
    """Return a pool whose result has the shape of a padded tensor."""
    added = _added(call)
    axes = len(added)
    pool = getattr(relax.op.nn, _POOLS[axes + 2])
    dilation = [_FIRST + number, *[1] * (axes - 1)]
    return pool(call.args[0], [1] * axes, padding=[*added, *[0] * axes], dilation=dilation)


def _border_number(call: relax.Call) -> int | None:
    """Return the number of the border that a pool shows to ``ConvertLayout``, None for all other calls."""
    if operator_name(call).removeprefix("relax.nn.") not in _POOLS.values():
        return None
    number = int(call.attrs.dilation[0]) - _FIRST
    return number if number >= 0 else None


def _in_layout(pool: relax.Call, border: relax.Call) -> relax.Call:
    """Return a border around a tensor that has the layout of a pool."""
    widths = [int(width) for width in border.attrs.pad_width]
    before, after = _LAYOUTS[len(widths) // 2], str(pool.attrs.layout)
    moved = [width for axis in after for width in widths[2 * before.index(axis) :][:2]]
    value = float(border.attrs.pad_value)
    return relax.op.nn.pad(pool.args[0], moved, str(border.attrs.pad_mode), value)
