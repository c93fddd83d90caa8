# SPDX-License-Identifier: Apache-2.0
"""Calls of operators that a pass of TVM's is not to see: to it they are calls of something unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from .functions import with_own_functions
from .rewritten_calls import with_calls

_HIDDEN = "tvm_stitch.hidden"


def hidden_from(
    convert: Callable[[tvm.IRModule], tvm.IRModule], mod: tvm.IRModule, hides: Callable[[Any], bool]
) -> tvm.IRModule:
    """``convert(mod)``, which does not see those calls that ``hides``: they get its operands, and stay as they are."""
    hidden: list[Any] = []
    made = convert(with_own_functions(mod, lambda func: _Hidden(hidden, hides).visit_expr(func)))

    def shown(_builder: Any, call: Any) -> Any:
        called = str(call.args[0].global_symbol)
        if not called.startswith(_HIDDEN):
            return call
        before = hidden[int(called.rpartition(".")[2])]
        return relax.Call(before.op, call.args[1:], before.attrs, before.ty_args)

    return with_calls(made, ("relax.call_pure_packed",), shown)


@relax.expr_functor.mutator
class _Hidden(relax.PyExprMutator):
    def __init__(self, hidden: list[Any], hides: Callable[[Any], bool]):
        super().__init__()
        self.hidden, self.hides = hidden, hides

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if not self.hides(call):
            return call
        self.hidden.append(call)
        return relax.op.call_pure_packed(f"{_HIDDEN}.{len(self.hidden) - 1}", *call.args, ty_args=call.ty)
