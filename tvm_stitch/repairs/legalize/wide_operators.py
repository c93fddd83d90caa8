# SPDX-License-Identifier: Apache-2.0
"""WideOperators: compute operators in float32 that TVM does not lower for bfloat16.

Fault: TVM's legalization of norms raises for bfloat16, as do its power and its reductions to an index.
Seen in: TVM 0.27.0
Input: ``R.nn.layer_norm`` of (4, 6) bfloat16, target llvm
Upstream: none known
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...relax.rewriting.calls import with_calls
from ...support.module_pass import module_pass

WIDENED = tuple(
    f"relax.{name}"
    for name in ("nn.layer_norm", "nn.group_norm", "nn.instance_norm", "power", "argmax", "argmin")
)
"""Operators that fail for bfloat16, in TVM's legalization or after it."""


@module_pass
class WideOperators:
    """Cast the operands of these operators to float32, and their results back. Runs before ``LegalizeOps``."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_calls(mod, WIDENED, _widened, why="TVM does not compile the operator for bfloat16")


def _widened(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if not _is_bfloat16(call.args[0]):
        return call
    args = [relax.op.astype(arg, "float32") if _is_bfloat16(arg) else arg for arg in call.args]
    wide = relax.Call(call.op, list(map(builder.emit, args)), call.attrs, call.ty_args, call.span)
    return relax.op.astype(builder.emit(wide), "bfloat16") if _is_bfloat16(call) else wide


def _is_bfloat16(value: relax.Expr) -> bool:
    return str(getattr(value.ty, "dtype", "")) == "bfloat16"
