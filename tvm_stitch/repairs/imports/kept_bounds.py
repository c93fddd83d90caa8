# SPDX-License-Identifier: Apache-2.0
"""KeptBounds: refuse sizes above the greatest ones that a function declares.

An exported program may have a bound that its author did not ask for. PyTorch takes a size of one for fixed. A pyramid
of features exported with an image of 64 rows, whose last level has one row, takes no image of more rows.

Fault: TVM plans memory for the greatest declared sizes, and does not check them. Greater ones end in a "storage
    allocation failure".
Seen in: TVM 0.27.0
Input: two matrix products of ``n`` rows with a declared ``n <= 4``, run with 5000 rows, target llvm
Upstream: none known
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from ... import compat
from ...relax.rewriting.functions import own_functions, with_own_functions
from ...support.module_pass import module_pass

LEAST, MOST = "tir_var_lower_bound", "tir_var_upper_bound"
"""Names of function attributes: the least and the greatest value of each symbolic variable, by the variable's name."""


def declared(func: relax.Function, name: str) -> dict[str, int]:
    """Return the values of an attribute, ``LEAST`` or ``MOST``, by the names of symbolic variables."""
    given = dict(func.attrs or {}).get(name) or {}
    return {str(variable): int(value) for variable, value in given.items()}


@module_pass
class KeptBounds:
    """Begin functions that declare greatest values of symbols with checks of them."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the functions that declare such bounds."""
        if not any(declared(func, MOST) for _, func in own_functions(mod)):
            return mod
        return with_own_functions(mod, _checked)


def _checked(func: relax.Function) -> relax.Function:
    most = {name: value for name, value in declared(func, MOST).items() if value >= 0}
    shapes = [getattr(param.ty, "shape", None) for param in func.params]
    extents = {e for shape in shapes if isinstance(shape, relax.ShapeExpr) for e in shape.values}
    # Symbols that are computed in the function, as those of ``2*h``, have no value yet. They are not checked.
    known = [extent for extent in extents if isinstance(extent, tirx.Var) and extent.name in most]
    checked = sorted(known, key=lambda var: str(var.name))
    if not checked:
        return func
    bindings = []
    for var in checked:
        bounded = relax.ShapeType([tirx.min(var, compat.const(most[var.name], "int64"))])
        bindings.append(
            relax.MatchCast(relax.Var(f"{var.name}_kept", bounded), relax.ShapeExpr([var]), bounded)
        )
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    body = relax.BlockBuilder().normalize(body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
