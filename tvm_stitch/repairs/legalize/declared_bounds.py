# SPDX-License-Identifier: Apache-2.0
"""DeclaredBounds: simplify shapes by the bounds that a function declares of its symbolic variables.

An importer slices a table of 512 positions to a sequence's length ``min(s, 512)``. PyTorch's ``Dim("s", max=500)``
becomes the attribute ``tir_var_upper_bound`` of the function. Differences of neighbours, ``x[:, 1:] - x[:, :-1]``,
have ``s - min(1, s)`` and ``max(s - 1, 0)`` elements, both ``s - 1`` where ``tir_var_lower_bound`` is at least 1.

Fault: TVM does not simplify shapes by the declared bounds. A sum of tensors with ``min(s, 512)`` and ``s`` rows
    gets no shape, and the calls that follow do not compile.
Seen in: TVM 0.27.0
Input: ``R.add(x, R.strided_slice(table, [0], [0], [n], [1]))`` with a declared ``n <= 12`` and 16 rows in the
    table
Upstream: none known
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ... import compat
from ...graph.extent import as_expr
from ...relax.rewriting.functions import own_functions, with_own_functions, with_result_inferred
from ...relax.rewriting.operators import operator_name
from ...relax.rewriting.views import shape_of
from ...support.module_pass import module_pass
from ..imports.kept_bounds import LEAST, MOST, declared

ENDLESS = 1 << 40
"""A bound above every extent. A variable without a declared greatest value is bounded by it."""

SLICE = "relax.strided_slice"


@module_pass
class DeclaredBounds:
    """Simplify the shapes of functions that declare bounds, and slices that are known to stay within a tensor."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the functions that declare bounds."""
        if not any(declared(func, name) for _, func in own_functions(mod) for name in (LEAST, MOST)):
            return mod
        return with_own_functions(mod, _simplified)


def _simplified(func: relax.Function) -> relax.Function:
    least, most, analyzer = declared(func, LEAST), declared(func, MOST), compat.Analyzer()
    for var in relax.analysis.defined_symbolic_vars(func):
        low, high = least.get(var.name, 0), most.get(var.name, -1)
        high = high if high >= 0 else ENDLESS
        if (var.name in least or var.name in most) and 0 <= low <= high:
            compat.bind_range(analyzer, var, compat.const(high + 1, "int64"), low)
    mutator = _Mutator(analyzer)
    simplified = mutator.visit_expr(func)
    return with_result_inferred(simplified) if mutator.changed else func


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, analyzer: Any) -> None:
        super().__init__()
        self.analyzer, self.changed = analyzer, False

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.ShapeExpr:  # pylint: disable=arguments-renamed
        values = [self.analyzer.simplify(value) for value in shape.values]
        if all(compat.structural_equal(a, b) for a, b in zip(values, shape.values)):
            return shape
        self.changed = True
        return relax.ShapeExpr(values)

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if operator_name(call) != SLICE or call.attrs.assume_inbound:
            return call
        if (within := self._within(call)) is None:
            return call
        self.changed = True
        return within

    def _within(self, call: relax.Call) -> relax.Expr:
        """Return the slice with ends counted from the front, if it begins and ends in the tensor, or None."""
        shape, (axes, begin, end, *strides) = shape_of(call.args[0]), call.args[1:]
        parts = [list(getattr(part, "fields", None) or ()) for part in (axes, begin, end, *strides)]
        if shape is None or any(len(part) != len(parts[0]) for part in parts):
            return None
        if any((compat.int_value(stride) or 0) < 1 for part in parts[3:] for stride in part):
            return None
        cuts = []
        for axis, first, last in zip(*parts[:3]):
            number = compat.int_value(axis)
            if number is None:
                return None
            extent = as_expr(shape[number])
            first, last = (self._from_the_front(position, extent) for position in (first, last))
            order = (as_expr(0) <= first, first <= last, last <= extent)
            if not all(self.analyzer.can_prove(each) for each in order):
                return None
            cuts.append((first, last))
        firsts, lasts = zip(*cuts)
        return relax.op.strided_slice(
            call.args[0], axes, relax.Tuple(firsts), relax.Tuple(lasts), *strides, assume_inbound=True
        )

    def _from_the_front(self, position: Any, extent: Any) -> Any:
        """Return an end of a slice, counted from the front if it is a number.

        A number below zero counts from the end, and one beyond the tensor is the tensor's end.
        """
        number = compat.int_value(position)
        if number is None:
            return position
        if number < 0:
            return self.analyzer.simplify(extent + as_expr(number))
        return extent if self.analyzer.can_prove(extent <= position) else position
