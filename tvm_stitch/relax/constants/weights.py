# SPDX-License-Identifier: Apache-2.0
"""ConstantWeights: make constants of weights that a model fills with one value."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from ...cost.choices import Choices
from ...graph.extent import is_static
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.operators import PRODUCTS, has_operators, operator_name
from ..rewriting.readers import readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import VIEWS, shape_of

VALUE = {"relax.broadcast_to": 0, "relax.full": 1}
"""Operators that may make a tensor of one value, each with the position of the argument that holds the value."""


@module_pass
class ConstantWeights:
    """Make constants of tensors of one value that a matmul or a convolution reads, directly or through views.

    ONNX's ``ConstantOfShape`` is imported as such a tensor. Templates pack constants at compile time, and leave an
    operator to TVM if each call computes its weights. Tensors that other operators read stay computed: one value
    costs a kernel nothing to read, but a tensor does. Runs before ``ConstantViews`` and ``LegalizeOps``.
    """

    def __init__(self, choices: Choices):
        self.choices = choices

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        if not has_operators(mod, VALUE):
            return mod
        weights = set().union(*(_weights(func, self.choices) for _, func in own_functions(mod)))
        return apply_rules(mod, [Rule("templates pack constants", _constant, variables=weights)])


def _weights(func: relax.Function, choices: Choices) -> set[relax.Var]:
    """Return the variables of tensors of one value that matmuls or convolutions read."""
    values = relax.analysis.get_var2val(func)
    filled = [var for var, value in values.items() if _is_filled(value, choices)]
    readers = readers_of(func) if filled else {}

    def reaches_product(var: relax.Var) -> bool:
        bindings = [binding for binding in readers.get(var, ()) if binding is not None]
        names = [(binding, operator_name(getattr(binding, "value", None))) for binding in bindings]
        return any(n in PRODUCTS or (n in VIEWS and reaches_product(b.var)) for b, n in names)

    return {var for var in filled if reaches_product(var)}


def _is_filled(value: relax.Expr, choices: Choices) -> bool:
    """Return whether a value is a tensor of one constant value, up to the largest size allowed for a constant."""
    if operator_name(value) not in VALUE:
        return False
    source, shape = value.args[VALUE[operator_name(value)]], shape_of(value)
    if not isinstance(source, tvm.ir.GenericConst) or shape is None or not is_static(shape):
        return False
    held = source.value
    if str(held.dtype) != str(value.ty.dtype) or math.prod(held.shape) != 1:
        return False
    return math.prod(shape) * held.numpy().itemsize <= choices.largest_filled_weight


def _constant(match: Match) -> relax.Expr:
    """Return the constant that equals a filled tensor."""
    call = match.before
    held = call.args[VALUE[operator_name(call)]].value
    array = np.broadcast_to(held.numpy().reshape(()), shape_of(call) or ()).copy()
    return relax.const(array, str(held.dtype))
