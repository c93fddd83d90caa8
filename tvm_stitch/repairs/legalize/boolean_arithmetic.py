# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons and reductions of booleans as logic, or in integers.

Importers emit them: PyTorch's ``isfinite`` multiplies two booleans, ``count_nonzero`` compares one with zero, and
ONNX has ``Equal`` of booleans.

Fault: TVM treats booleans as floats when it writes code for LLVM, and knows no least and no greatest boolean. It
    does not compile arithmetic, comparisons and reductions of booleans for a CPU.
Seen in: TVM 0.27.0
Input: ``R.add(x, y)`` of booleans, target llvm
Upstream: https://github.com/apache/tvm/issues/19551
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax import op as R

Mend = Callable[[Any, Any], Any]


def is_of_booleans(call: relax.Call) -> bool:
    """Return whether all operands of a call are booleans."""
    return all(str(getattr(arg.ty, "dtype", "")) == "bool" for arg in call.args)


def _by_logic(logic: Callable[[Any, Any, Any], Any]) -> Mend:
    """Return the mend of an operator of two tensors: ``logic(emit, left, right)`` if both are booleans."""

    def mend(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return logic(builder.emit, *call.args) if is_of_booleans(call) else call

    return mend


def _none_but(emit: Any, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """Return ``right and not left``: false is less than true."""
    return R.logical_and(emit(R.logical_not(left)), right)


LOGIC: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relax.add": lambda emit, left, right: R.logical_or(left, right),
    "relax.maximum": lambda emit, left, right: R.logical_or(left, right),
    "relax.multiply": lambda emit, left, right: R.logical_and(left, right),
    "relax.minimum": lambda emit, left, right: R.logical_and(left, right),
    "relax.not_equal": lambda emit, left, right: R.logical_xor(left, right),
    "relax.equal": lambda emit, left, right: R.logical_not(emit(R.logical_xor(left, right))),
    "relax.less": _none_but,
    "relax.greater": lambda emit, left, right: _none_but(emit, right, left),
    "relax.less_equal": lambda emit, left, right: R.logical_not(emit(_none_but(emit, right, left))),
    "relax.greater_equal": lambda emit, left, right: R.logical_not(emit(_none_but(emit, left, right))),
}
"""By operator of two tensors, its logic on booleans."""

ORDERED = {
    **dict.fromkeys(("relax.max", "relax.min", "relax.argmax", "relax.argmin"), "int8"),
    **dict.fromkeys(("relax.sort", "relax.argsort"), "int32"),
}
"""Operators that need an order, and the integer dtype that booleans are cast to. TVM sorts no integers of 8 bits."""


def _by_integers(dtype: str) -> Mend:
    """Return the mend that computes an operator of booleans in ``dtype``, and casts a boolean result back."""

    def mend(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not is_of_booleans(call):
            return call
        result = relax.Call(call.op, [builder.emit(R.astype(call.args[0], dtype))], call.attrs)
        return R.astype(builder.emit(result), "bool") if str(call.ty.dtype) == "bool" else result

    return mend


MENDED: dict[str, Mend] = {
    **{name: _by_logic(logic) for name, logic in LOGIC.items()},
    **{name: _by_integers(dtype) for name, dtype in ORDERED.items()},
}
"""By operator, the function that rewrites a call so that TVM compiles it, or returns the call as it is."""
