# SPDX-License-Identifier: Apache-2.0
"""Keep TVM's ``ConvertLayout`` from operators that it carries a layout through wrongly.

Layouts go through the operators listed here alone. To ``ConvertLayout`` all others are calls of an unknown function.

Fault: ``ConvertLayout`` is wrong for some operators: norms of several axes keep their weights as they are, RMS
    norms lose their last axis, and ``repeat`` of a flattened tensor repeats another order. For negative axes it
    raises, which costs the whole model its layouts.
Seen in: TVM 0.27.0
Input: ``R.repeat(R.nn.conv2d(x, w), 2)`` converted to NHWC
Upstream: none known
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ...relax.rewriting.calls import with_calls
from ...relax.rewriting.functions import with_own_functions
from ...relax.rewriting.operators import ELEMENTWISE, operator_name

_REDUCTIONS = "max mean min prod std sum variance"
_OF_CHANNELS = "nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.prelu nn.softmax"
_IMAGES = (
    "image.resize2d image.resize3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d "
    "nn.avg_pool2d nn.avg_pool3d nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d "
    "nn.conv3d_transpose nn.max_pool1d nn.max_pool2d nn.max_pool3d"
)
_MOVEMENT = "concat expand_dims flip permute_dims repeat split squeeze strided_slice tile"

CARRIED = ELEMENTWISE | frozenset(
    f"relax.{name}" for name in " ".join((_REDUCTIONS, _OF_CHANNELS, _IMAGES, _MOVEMENT)).split()
)
"""The operators that carry layouts, but for ``PROVISOS``."""


PROVISOS: dict[str, Callable[[Any], bool]] = {
    "relax.nn.layer_norm": lambda call: len(call.attrs.axes) == 1,
    "relax.permute_dims": lambda call: all(int(axis) >= 0 for axis in call.attrs.axes or ()),
    "relax.repeat": lambda call: call.attrs.axis is not None,
    "relax.squeeze": lambda call: all(int(axis) >= 0 for axis in call.attrs.axis or ()),
}
"""Which calls of an operator carry layouts, where not all do."""

_RULE = "FRelaxInferLayout"
_HIDDEN = "tvm_stitch.hidden"


def is_carried(call: Any) -> bool:
    """Whether ``ConvertLayout`` may see a call: it carries layouts rightly, or TVM has no rule for it."""
    name = operator_name(call)
    if not name or call.op.get_attr(_RULE) is None:
        return True
    return name in CARRIED and (name not in PROVISOS or PROVISOS[name](call))


def converted_where_carried(
    mod: tvm.IRModule, convert: Callable[[tvm.IRModule], tvm.IRModule]
) -> tvm.IRModule:
    """``convert(mod)``, which does not see operators that do not carry layouts.

    To it they are calls of something unknown, of its operands.
    """
    hidden: list[Any] = []
    made = convert(with_own_functions(mod, lambda func: _Hidden(hidden).visit_expr(func)))

    def shown(_builder: Any, call: Any) -> Any:
        called = str(call.args[0].global_symbol)
        if not called.startswith(_HIDDEN):
            return call
        before = hidden[int(called.rpartition(".")[2])]
        return relax.Call(before.op, call.args[1:], before.attrs, before.ty_args)

    return with_calls(made, ("relax.call_pure_packed",), shown)


@relax.expr_functor.mutator
class _Hidden(relax.PyExprMutator):
    def __init__(self, hidden: list[Any]):
        super().__init__()
        self.hidden = hidden

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if is_carried(call):
            return call
        self.hidden.append(call)
        return relax.op.call_pure_packed(f"{_HIDDEN}.{len(self.hidden) - 1}", *call.args, ty_args=call.ty)
