# SPDX-License-Identifier: Apache-2.0
"""UnsignedQuantization: store int8 tensors as uint8 with a zero point larger by 128, for CPUs that multiply those.

VNNI multiplies unsigned bytes by signed ones. An operator that quantizes a tensor can produce unsigned integers as
well. The operators that dequantize it then subtract 128 more. The values are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.movement import MOVES
from ..rewriting.operators import has_operators, operator_name
from ..rewriting.readers import Readers, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from .parameters import DEQUANTIZE, QUANTIZE, array_of, is_constant, is_served

SHIFT = 128
"""The number added to an int8 to make a uint8."""


@module_pass
class UnsignedQuantization:
    """Quantize to uint8 instead of int8 if all readers of the tensor dequantize it.

    Operators that only move elements may be between. Zero points have to be constants. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, (QUANTIZE,)):
            return mod
        shifted = set().union(*(_chosen(func) for _, func in own_functions(mod)))
        if not shifted:
            return mod

        def dequantized(match: Match) -> relax.Expr | None:
            return _dequantized(match) if match.before.args[0] in shifted else None

        def quantized(match: Match) -> relax.Expr | None:
            return _quantized(match) if match.var in shifted else None

        why = "VNNI multiplies unsigned bytes by signed ones"
        return apply_rules(mod, [Rule(why, quantized, (QUANTIZE,)), Rule(why, dequantized, (DEQUANTIZE,))])


def _chosen(func: relax.Function) -> set[relax.Var]:
    """Return the variables of a function that become unsigned."""
    blocks = [b for b in getattr(func.body, "blocks", ()) if isinstance(b, relax.DataflowBlock)]
    readers = readers_of(func)
    return set().union(*(_shifted(block.bindings, readers) for block in blocks))


def _shifted(bindings: Iterable[relax.Binding], readers: Readers) -> set[relax.Var]:
    """Return the variables of a block that become unsigned: quantized tensors, and moved copies of them."""
    sources: dict[relax.Var, relax.Expr | None] = {}
    for binding in bindings:
        value, name = binding.value, operator_name(binding.value)
        if (
            not isinstance(binding.var, relax.DataflowVar)
            or str(getattr(binding.var.ty, "dtype", "")) != "int8"
        ):
            continue
        if name == QUANTIZE and is_served(value) and is_constant(value.args[2]):
            sources[binding.var] = None
        elif name in MOVES and value.args[0] in sources:
            sources[binding.var] = value.args[0]
    kept = set(sources)
    while True:
        stays = {var for var in kept if not all(_follows(r, var, kept) for r in readers.get(var, ()))}
        stays |= {var for var in kept if sources[var] is not None and sources[var] not in kept}
        if not stays:
            return kept
        kept -= stays


def _follows(reader: relax.Binding, var: relax.Var, kept: set[relax.Var]) -> bool:
    """Return whether a reader can take unsigned integers for the signed ones."""
    call = reader.value
    if operator_name(call) == DEQUANTIZE:
        return call.args[0].same_as(var) and is_served(call) and is_constant(call.args[2])
    return reader.var in kept


def _quantized(match: Match) -> relax.Expr:
    call = match.value
    return relax.op.quantize(*_operands(call), axis=int(call.attrs.axis), out_dtype="uint8")


def _dequantized(match: Match) -> relax.Expr:
    call, dtype = match.value, str(match.before.ty.dtype)
    return relax.op.dequantize(*_operands(call), axis=int(call.attrs.axis), out_dtype=dtype)


def _operands(call: relax.Call) -> list[relax.Expr]:
    zero = array_of(call.args[2]).astype("int16") + SHIFT
    return [*call.args[:2], relax.const(np.asarray(zero.astype("uint8")), "uint8")]
