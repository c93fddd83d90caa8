# SPDX-License-Identifier: Apache-2.0
"""ProductSums: products of few rows become sums that a scope may take."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax, tirx

from ...config import StitchConfig
from ...device import DeviceModel
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import SUMS_ATTR
from .calls import ProductCall, ProductCalls, private_like
from .saving import saved
from .sums import sums_of


@module_pass
class ProductSums:
    """Write products of few rows as sums, if they wait for their weight.

    A product of one to sixteen rows reads its weight once and computes little: it is a reduction that waits for
    memory. As sums it is memory-intensive, and a dequantized weight is evaluated where it is multiplied. The function
    of the sums holds the product's own function as text, for :class:`~.whole_products.WholeProducts`. TVM prints no
    attribute that holds a function.

    Runs on calls of functions, before scopes are identified.
    """

    def __init__(self, device: DeviceModel, config: StitchConfig):
        self.device, self.config = device, config

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the products of each of the module's own functions."""
        calls = ProductCalls(mod, self.device, self.config)
        taken: dict[relax.Var, ProductCall] = {}
        for _, func in own_functions(mod):
            weights = calls.weights(func)
            products = {var: calls.found(value, weights) for var, value in weights.values.items()}
            taken |= {var: product for var, product in products.items() if product is not None}
        if not taken:
            return mod
        functions: dict[object, tvm.ir.GlobalVar] = {}
        stored: dict[object, tvm.ir.GenericConst] = {}

        def summed(match: Match) -> relax.Expr:
            call = taken[match.var]
            key = call.function, call.position, call.turning, call.turned
            if key not in functions:
                sums = sums_of(call.product, call.graph, call.product.width(self.device), call.order)
                functions[key] = match.builder.add_func(
                    _marked(sums, call, mod), f"{call.function.name_hint}_sums"
                )
            operands = [match.now(each) for each in call.operands]
            if call.turned:
                weight = operands[call.position]
                if (weight.value, call.order) not in stored:
                    stored[weight.value, call.order] = transposed(weight, call.order)
                operands[call.position] = stored[weight.value, call.order]
            return relax.call_tir(functions[key], relax.Tuple(operands), match.before.ty)

        return apply_rules(
            mod, [Rule("it waits for its weight", summed, variables=taken, leaves_unused=True)]
        )


def transposed(weight: tvm.ir.GenericConst, order: Sequence[int]) -> tvm.ir.GenericConst:
    """Return a constant with its axes in another order. Of each new axis, the order has the old one."""
    return relax.const(np.ascontiguousarray(weight.value.numpy().transpose(order)), str(weight.ty.dtype))


def _marked(sums: tirx.PrimFunc, call: ProductCall, mod: tvm.IRModule) -> tirx.PrimFunc:
    """Return the function of sums with the product's own functions and pattern."""
    func = mod[call.function]
    of = [func, call.position]
    if call.turning is not None:
        of.append(mod[call.turning])
    elif call.turned:
        of.append(list(call.order))
    return private_like(sums, func).with_attr(SUMS_ATTR, saved(of))
