# SPDX-License-Identifier: Apache-2.0
"""LegalizeOnce: TVM's legalization, which runs once for equal calls of an operator.

TVM describes each call in TE, makes a function of it, and then finds out that the module has that function already.
That is a third of the time that a graph of 5,000 operators takes to compile. Equal calls share a function without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import StructuralKey

from ...support.module_pass import module_pass
from ..rewriting.contents import contents_of
from ..rewriting.functions import own_functions
from ..rewriting.operators import ELEMENTWISE, PRODUCTS, operator_name

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
"""Returns the legalization of a call. The builder binds other values."""

READ_BY_TYPE = ELEMENTWISE | PRODUCTS | {"relax.nn.layer_norm", "relax.nn.rms_norm"}
"""Operators whose legalization depends on the types of constant tensors, and on the values of scalars alone."""

_WRITTEN = (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm)
"""Operands that are part of the program's text."""


@module_pass
class LegalizeOnce:
    """Replace operators by calls of functions, as TVM's ``LegalizeOps`` does.

    Args:
        own: legalizations by operator, in place of TVM's.
    """

    def __init__(self, own: Mapping[str, Legalize]):
        self.own = own

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        legalized = dict(self.own)
        contents = [contents_of(func) for _, func in own_functions(mod)]
        called = {name: values[0].op for each in contents for name, values in each.items() if name}
        for name, operator in called.items():
            if not isinstance(operator, tvm.ir.Op):  # a variable that is bound to a function
                continue
            known = self.own.get(name) or operator.get_attr("FLegalize")
            if known is not None:
                legalized[name] = _once(name, known)
        return relax.transform.LegalizeOps(legalized)(mod)


def _once(name: str, legalize: Legalize) -> Legalize:
    """Return a legalization that calls the function of an equal call, if there was one."""
    known: dict[StructuralKey, tuple[relax.Call, list[int]] | None] = {}

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        parts = _parts(name, call)
        if parts is None:
            return legalize(builder, call)
        key, tensors = parts
        if key not in known:
            result = legalize(builder, call)
            known[key] = _pattern(result, tensors)
            return result
        pattern = known[key]
        if pattern is None:
            return legalize(builder, call)
        before, places = pattern
        operands = relax.Tuple([tensors[place] for place in places])
        return relax.Call(before.op, [before.args[0], operands], before.attrs, before.ty_args)

    return legalized


def _parts(name: str, call: relax.Call) -> tuple[StructuralKey, list[relax.Expr]] | None:
    """Return a key that equal calls have, and the tensors among a call's operands.

    None if the legalization may depend on more than that. It may read a constant tensor or the binding of a tuple, and
    operands that occur twice cannot be told apart in its result.
    """
    tensors: list[relax.Expr] = []
    key: list[Any] = [call.attrs, call.ty, *call.ty_args]
    for arg in call.args:
        fields = arg.fields if isinstance(arg, relax.Tuple) else (arg,)
        key.append(len(fields) if isinstance(arg, relax.Tuple) else 0)
        for field in fields:
            if isinstance(field, _WRITTEN):
                key.append(field)
                continue
            if not isinstance(field.ty, relax.TensorType):
                return None
            if isinstance(field, tvm.ir.GenericConst):
                is_scalar = field.ty.ndim == 0
                if not is_scalar and name not in READ_BY_TYPE:
                    return None
                key += ["constant", field if is_scalar else field.ty]
            elif isinstance(field, relax.Var):
                key.append(field.ty)
            else:
                return None
            tensors.append(field)
    variables = [tensor for tensor in tensors if isinstance(tensor, relax.Var)]
    return (StructuralKey(key), tensors) if len(set(variables)) == len(variables) else None


def _pattern(result: relax.Expr, tensors: Sequence[relax.Expr]) -> tuple[relax.Call, list[int]] | None:
    """Return a legalized call, and the places of its operands among tensors. None if it reads anything else."""
    if operator_name(result) != "relax.call_tir" or len(result.args) != 2:
        return None
    places: list[int] = []
    for field in result.args[1].fields:
        first = places[-1] + 1 if places else 0
        place = next((i for i in range(first, len(tensors)) if tensors[i].same_as(field)), None)
        if place is None:
            return None
        places.append(place)
    return result, places
