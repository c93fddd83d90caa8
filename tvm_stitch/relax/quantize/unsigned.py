# SPDX-License-Identifier: Apache-2.0
"""UnsignedQuantization: int8 tensors as uint8 with a zero point that is 128 more, for CPUs that multiply those.

VNNI multiplies unsigned bytes by signed ones. What quantizes a tensor can as well make the unsigned integers, and what
dequantizes it subtract 128 more: the values are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import has_operators, operator_name
from ..rewriting.readers import readers_of
from ..rewriting.rebound import rebound
from .parameters import DEQUANTIZE, QUANTIZE, array_of, is_constant, is_served
from .views import MOVES

SHIFT = 128
"""What is added to an int8 to make a uint8 of it."""


@module_pass
class UnsignedQuantization:
    """Quantize to uint8 what a model quantizes to int8, where all that reads it dequantizes it.

    Operators that only move elements may be between. Zero points have to be constants. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_own_functions(mod, _rewritten) if has_operators(mod, (QUANTIZE,)) else mod


def _rewritten(func: Any) -> Any:
    shifted: set[Any] = set()
    for block in getattr(func.body, "blocks", ()):
        if isinstance(block, relax.DataflowBlock):
            shifted |= _shifted(block.bindings, readers_of(func))
    return _Mutator(shifted).visit_expr(func) if shifted else func


def _shifted(bindings: Iterable[Any], readers: dict[Any, list[Any]]) -> set[Any]:
    """The variables of a block that become unsigned: what is quantized, and what moves it."""
    found: dict[Any, Any] = {}
    for binding in bindings:
        value, name = binding.value, operator_name(binding.value)
        if (
            not isinstance(binding.var, relax.DataflowVar)
            or str(getattr(binding.var.ty, "dtype", "")) != "int8"
        ):
            continue
        if name == QUANTIZE and is_served(value) and is_constant(value.args[2]):
            found[binding.var] = None
        elif name in MOVES and value.args[0] in found:
            found[binding.var] = value.args[0]
    kept = set(found)
    while True:
        stays = {var for var in kept if not all(_follows(r, var, kept) for r in readers.get(var, ()))}
        stays |= {var for var in kept if found[var] is not None and found[var] not in kept}
        if not stays:
            return kept
        kept -= stays


def _follows(reader: Any, var: Any, kept: set[Any]) -> bool:
    """Whether a reader can take unsigned integers for the signed ones."""
    call = reader.value
    if operator_name(call) == DEQUANTIZE:
        return call.args[0].same_as(var) and is_served(call) and is_constant(call.args[2])
    return reader.var in kept


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, shifted: set[Any]):
        super().__init__()
        self.shifted = shifted

    def visit_var_binding_(self, binding: Any) -> None:
        call = binding.value
        name = operator_name(call)
        unsigned = binding.var in self.shifted
        if name in MOVES and unsigned:
            made = relax.Call(
                call.op, [self.visit_expr(call.args[0]), *call.args[1:]], call.attrs, call.ty_args
            )
        elif name == QUANTIZE and unsigned:
            made = relax.op.quantize(*self._args(call), axis=int(call.attrs.axis), out_dtype="uint8")
        elif name == DEQUANTIZE and call.args[0] in self.shifted:
            made = relax.op.dequantize(
                *self._args(call), axis=int(call.attrs.axis), out_dtype=str(call.ty.dtype)
            )
        else:
            super().visit_var_binding_(binding)
            return
        rebound(self, binding.var, made)

    def _args(self, call: Any) -> list[Any]:
        zero = array_of(call.args[2]).astype("int16") + SHIFT
        return [*map(self.visit_expr, call.args[:2]), relax.const(np.asarray(zero.astype("uint8")), "uint8")]
