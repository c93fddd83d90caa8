# SPDX-License-Identifier: Apache-2.0
"""Propagate layouts through quantizing and dequantizing, for which TVM's ``ConvertLayout`` has no rule.

With one scale and one zero point, both compute each element from one element of the operand. Casts do so too, and
have the same types. The conversion therefore sees casts in their place, and the calls come back behind it. The span
of a call, which the conversion keeps, tells which call a cast replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ..quantize.parameters import DEQUANTIZE, QUANTIZE, is_per_tensor
from ..rewriting.calls import with_calls
from ..rewriting.operators import ELEMENTWISE, operator_name

_STANDS_IN = "tvm_stitch.quantization"


def is_elementwise(call: relax.Expr) -> bool:
    """Return whether an operator computes each element from one element of each operand."""
    return operator_name(call) in ELEMENTWISE or is_per_tensor(call)


def converted_with_quantization(
    mod: tvm.IRModule, convert: Callable[[tvm.IRModule], tvm.IRModule]
) -> tvm.IRModule:
    """Return ``convert(mod)``. It sees casts in place of quantizing and dequantizing with one scale."""
    hidden: list[Any] = []

    def cast(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not is_per_tensor(call):
            return call
        widened = relax.op.astype(call.args[0], str(call.ty.dtype))
        hidden.append(call)
        span = tvm.ir.Span(tvm.ir.SourceName(f"{_STANDS_IN}.{len(hidden) - 1}"), 0, 0, 0, 0)
        return relax.Call(widened.op, widened.args, widened.attrs, widened.ty_args, span)

    def shown(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        name = str(call.span.source_name.name) if call.span is not None and call.span.source_name else ""
        if not name.startswith(_STANDS_IN):
            return call
        before = hidden[int(name.rpartition(".")[2])]
        args = [call.args[0], *before.args[1:]]
        return relax.Call(before.op, args, before.attrs, before.ty_args, before.span)

    casts = with_calls(mod, (QUANTIZE, DEQUANTIZE), cast, why="TVM converts the layout of casts")
    return with_calls(convert(casts), ("relax.astype",), shown, why="the layouts are converted")
