# SPDX-License-Identifier: Apache-2.0
"""ShiftedOperands: the bias of a convolution becomes part of the bias behind the product that reads the convolution.

A separable convolution is a depthwise convolution, a batch norm and a product over channels. The batch norm's shift
alone would be a kernel between the two: ``(x + b) W = x W + b W``, and ``b W`` is a constant. A matmul adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax

from ...graph.dtype import HALF
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import Readers, only_reader_inside, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import RESHAPES, shape_of
from .rows import CAST, MATMUL, RowProduct, Values, channel_constant, keeps_rows, row_product


@dataclass(frozen=True)
class Unshifted:
    """A value without its shift.

    Attributes:
        source: the result of the convolution, of the value's dtype.
        shift: the number that is added to each channel, in float64.
        shapes: the shapes of reshapes behind it, in order.
    """

    source: relax.Var
    shift: np.ndarray
    shapes: tuple[relax.Expr, ...] = ()


@dataclass
class _Plan:
    products: dict[relax.Var, tuple[RowProduct, Unshifted, bool]] = field(default_factory=dict)
    adds: dict[relax.Var, np.ndarray] = field(default_factory=dict)  # the numbers that an addition adds more


@module_pass
class ShiftedOperands:
    """Rewrite ``product(convolution + bias)`` as ``product(convolution) + constant``, in half types.

    The product is a matmul or a convolution of all channels with channels last, by a constant weight, without a border.
    Casts and reshapes of positions may lie between. Only such products read the sum: otherwise a kernel computes it
    anyway. A constant that is added behind the product takes in the new one. Runs once layouts are chosen.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        plan = _Plan()
        for _, func in own_functions(mod):
            _find(func, plan)

        def replaced(match: Match) -> relax.Expr | None:
            if match.var in plan.adds:
                return _added(match, plan.adds[match.var])
            return _product(match, *plan.products[match.var])

        variables = {*plan.products, *plan.adds}
        rule = Rule("no kernel adds the bias alone", replaced, variables=variables, leaves_unused=True)
        return apply_rules(mod, [rule], unique_names=True) if variables else mod


def _find(func: relax.Function, plan: _Plan) -> None:
    values: Values = dict(relax.analysis.get_var2val(func).items())
    if not any(operator_name(call) in PRODUCTS - {MATMUL} for call in values.values()):
        return
    readers = readers_of(func)
    by_operand: dict[relax.Var, dict[relax.Var, RowProduct]] = {}
    for var, call in values.items():
        made = row_product(call, values) if str(getattr(call.ty, "dtype", "")) in HALF else None
        if made is not None and not made.is_padded and isinstance(made.call.args[0], relax.DataflowVar):
            by_operand.setdefault(made.call.args[0], {})[var] = made
    for operand, products in by_operand.items():
        if any(binding is None or binding.var not in products for binding in readers[operand]):
            continue
        unshifted = _unshifted(operand, values, readers)
        if unshifted is None:
            continue
        for var, made in products.items():
            addition = _addition(var, values, readers)
            plan.products[var] = made, unshifted, addition is None
            if addition is not None:
                plan.adds[addition] = _shift_of(made, unshifted)


def _unshifted(operand: relax.Var, values: Values, readers: Readers) -> Unshifted | None:
    """Return the sum of a convolution and a bias without the bias, or None for other values."""
    at: relax.Expr = operand
    shift: np.ndarray | None = None
    shapes: list[relax.Expr] = []
    while isinstance(at, relax.DataflowVar):
        call = values.get(at)
        name = operator_name(call)
        if name in PRODUCTS - {MATMUL}:
            if shift is None or call.ty.dtype != operand.ty.dtype:  # type: ignore[union-attr]
                return None
            return Unshifted(at, shift, tuple(shapes[::-1]))
        if at is not operand and only_reader_inside(readers, at) is None:
            return None
        if name in RESHAPES and keeps_rows(call):
            shapes.append(call.ty.shape)  # type: ignore[union-attr]
            at = call.args[0]  # type: ignore[union-attr]
        elif name == CAST and str(call.ty.dtype) in (*HALF, "float32"):  # type: ignore[union-attr]
            at = call.args[0]  # type: ignore[union-attr]
        elif name == "relax.add" and shift is None:
            found = _constant_of(call, values)
            if found is None:
                return None
            at, shift = found
        else:
            return None
    return None


def _constant_of(call: relax.Expr, values: Values) -> tuple[relax.Expr, np.ndarray] | None:
    """Return the operand that is no constant, and the numbers that are added to its channels in float64, or None."""
    for arg in call.args:
        array = channel_constant(call, arg, values) if isinstance(arg, relax.Var) else None
        if array is not None:
            channels = (shape_of(call) or (0,))[-1]
            return arg, np.broadcast_to(array.astype("float64").reshape(-1), (channels,))
    return None


def _addition(product: relax.Var, values: Values, readers: Readers) -> relax.Var | None:
    """Return the variable of the addition of constants to channels that alone follows a product, or None."""
    at = product
    while (binding := only_reader_inside(readers, at)) is not None:
        name = operator_name(binding.value)
        if name == "relax.add" and channel_constant(binding.value, at, values) is not None:
            return binding.var
        if name != CAST and not (name in RESHAPES and keeps_rows(binding.value)):
            return None
        at = binding.var
    return None


def _shift_of(made: RowProduct, unshifted: Unshifted) -> np.ndarray:
    """Return what a product makes of the shift: for each result the sum over channels and positions of the window."""
    weight = made.weight.astype("float64")
    return weight.reshape(len(weight), -1, weight.shape[-1]).sum(1) @ unshifted.shift


def _product(match: Match, made: RowProduct, unshifted: Unshifted, adds: bool) -> relax.Expr:
    """Return the product of the convolution, with the constant that replaces the bias if ``adds``."""
    data = match.now(unshifted.source)
    for shape in unshifted.shapes:
        data = match.emit(relax.op.reshape(data, shape))
    call = made.call
    result = relax.Call(call.op, [data, match.now(call.args[1])], call.attrs, call.ty_args)
    if not adds:
        return result
    dtype = str(call.ty.dtype)
    return relax.op.add(match.emit(result), relax.const(_shift_of(made, unshifted).astype(dtype), dtype))


def _added(match: Match, numbers: np.ndarray) -> relax.Expr:
    """Return an addition of a constant with more numbers added."""
    values: Mapping[relax.Var, relax.Expr] = match.values
    call, dtype = match.before, str(match.before.ty.dtype)
    found = _constant_of(call, values)
    assert found is not None
    at, constant = found
    return relax.op.add(match.now(at), relax.const((constant + numbers).astype(dtype), dtype))
