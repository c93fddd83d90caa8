# SPDX-License-Identifier: Apache-2.0
"""Keep TVM's ``ConvertLayout`` from operators that it propagates a layout through wrongly.

Layouts go through the operators listed here alone. To ``ConvertLayout`` all others are calls of an unknown function.

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

from ...relax.rewriting.operators import ELEMENTWISE, operator_name
from ...relax.rewriting.rules import CALL, Match, Rule, apply_rules

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

    To ``convert`` such an operator is a call of an unknown function on the same operands.
    """
    hidden: list[relax.Call] = []

    def unknown(match: Match) -> relax.Expr | None:
        call = match.value
        if propagates(call):
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

    converted = convert(apply_rules(mod, [Rule("TVM's rule for it is wrong, or fails", unknown, (CALL,))]))
    return apply_rules(converted, [Rule("the layouts are converted", shown, ("relax.call_pure_packed",))])
