# SPDX-License-Identifier: Apache-2.0
"""DerivedInputs: compute symbols that the parameters of a function have in expressions only.

An image whose sides are multiples of 32 comes from PyTorch as (1, 3, 32*h, 32*w). The height becomes a symbol of
its own, ``h`` is computed from it, and a cast checks that the height is ``32*h``.

Fault: TVM binds symbols that are an extent by themselves. It does not solve ``32*h`` for ``h``, and refuses the
    function ("PrimExpr is not computed").
Seen in: TVM 0.27.0
Input: ``x: R.Tensor((2 * n,), "float32")``, any target
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ... import compat
from ...relax.rewriting.functions import own_functions, with_own_functions
from ...support.module_pass import module_pass


@module_pass
class DerivedInputs:
    """Give such parameters new symbols. Functions whose symbols no linear expression gives stay as they are."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the functions with symbols in expressions only."""
        if not any(_unbound(func.params) for _, func in own_functions(mod)):
            return mod
        return with_own_functions(mod, _bound)


def _unbound(params: list[relax.Var]) -> set[Any]:
    """Return the symbols of parameters that are no extent of one."""
    extents = [extent for param in params for extent in _extents(param)]
    plain = {extent for extent in extents if isinstance(extent, tirx.Var)}
    return {var for extent in extents for var in compat.free_vars(extent)} - plain


def _extents(param: relax.Var) -> list[Any]:
    shape = getattr(param.ty, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _bound(func: relax.Function) -> relax.Function:
    unbound = _unbound(func.params)
    computed = set(unbound)
    params: list[relax.Var] = []
    bindings: list[relax.Binding] = []
    casts: list[relax.Binding] = []
    for param in func.params:
        extents = _extents(param)
        for axis, extent in enumerate(extents):
            if not computed & compat.free_vars(extent):
                continue
            extents[axis] = tirx.Var(f"{param.name}_{axis}", "int64")
            solution = _solution(extent, unbound)
            if solution is not None:
                var, factor, rest = solution
                unbound.remove(var)
                bindings += _computed(var, tirx.floordiv(extents[axis] - rest, factor))
        if not any(computed & compat.free_vars(extent) for extent in _extents(param)):
            params.append(param)
            continue
        params.append(relax.Var(param.name, relax.TensorType(extents, param.ty.dtype)))
        casts.append(relax.MatchCast(param, params[-1], param.ty))
    if unbound or not casts:
        return func
    body = relax.SeqExpr([relax.BindingBlock([*bindings, *casts]), *func.body.blocks], func.body.body)
    body = relax.BlockBuilder().normalize(body)
    return relax.Function(params, body, body.ty, func.is_pure, func.attrs, func.span)


def _computed(var: tirx.Var, value: Any) -> list[relax.Binding]:
    """Return bindings that give a symbol a value. A copy hides the value from TVM.

    TVM otherwise puts the value in place of the symbol, in types alone. ``FuseTIR`` then refuses calls that have the
    symbol as an argument.
    """
    kind = relax.ShapeType(ndim=1)
    copied = relax.op.call_pure_packed("vm.builtin.copy", relax.ShapeExpr([value]), ty_args=kind)
    whole = relax.Var(f"{var.name}_value", kind)
    bound = relax.Var(f"{var.name}_bound", relax.ShapeType([var]))
    return [relax.VarBinding(whole, copied), relax.MatchCast(bound, whole, relax.ShapeType([var]))]


def _solution(extent: Any, unbound: set[Any]) -> tuple[Any, int, Any] | None:
    """Return an unbound symbol, its factor and the rest of an extent, or None if the extent gives no such symbol."""
    free = [var for var in compat.free_vars(extent) if var in unbound]
    if len(free) != 1:
        return None
    coefficients = compat.arith.detect_linear_equation(extent, free)
    factor = compat.int_value(coefficients[0]) if coefficients else None
    return (free[0], factor, coefficients[1]) if factor is not None and factor > 0 else None
