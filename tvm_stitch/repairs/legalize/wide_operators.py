# SPDX-License-Identifier: Apache-2.0
"""Compute operators of half types in float32 that TVM does not lower, or within which it rounds.

PyTorch computes them in float32, and rounds their results alone. Within a stitched kernel a cast costs nothing.

Fault: TVM's legalization of norms raises for bfloat16, as do its power and its reductions to an index. It rounds to
    float16 within an operator: the error function of GELU, and a layer norm before its scale.
Seen in: TVM 0.27.0
Input: ``R.argmax`` of (4, 6) bfloat16, or ``R.nn.gelu`` of (64,) float16, target llvm
Upstream: none known
"""

from __future__ import annotations

import tvm
from tvm import relax

from ...graph.dtype import HALF
from ...relax.rewriting.calls import with_calls
from ...support.module_pass import module_pass

WIDENED = tuple(
    f"relax.{name}" for name in ("nn.group_norm", "nn.instance_norm", "power", "argmax", "argmin")
)
"""Operators that fail for bfloat16, in TVM's legalization or after it."""
ROUNDING = ("relax.nn.gelu", "relax.nn.layer_norm")
"""Operators of which TVM rounds values before the result."""


@module_pass
class WideOperators:
    """Cast operands of bfloat16 to float32, and results back. Runs before ``LegalizeOps``."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        def widened(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            return _in_float32(builder, call) if _dtype(call.args[0]) == "bfloat16" else call

        return with_calls(mod, WIDENED, widened, why="TVM does not compile the operator for bfloat16")


@module_pass
class RoundedOnce:
    """Cast half operands to float32, and results back. Runs last before ``LegalizeOps``: others know the operators."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        def widened(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            return _in_float32(builder, call) if _dtype(call) in HALF else call

        return with_calls(mod, ROUNDING, widened, why="TVM rounds within the operator")


def _in_float32(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    args = [relax.op.astype(arg, "float32") if _dtype(arg) in HALF else arg for arg in call.args]
    wide = relax.Call(call.op, list(map(builder.emit, args)), call.attrs, call.ty_args, call.span)
    return relax.op.astype(builder.emit(wide), _dtype(call)) if _dtype(call) in HALF else wide


def _dtype(value: relax.Expr) -> str:
    return str(getattr(value.ty, "dtype", ""))
