# SPDX-License-Identifier: Apache-2.0
"""DeclaredBounds: shapes are as simple as what a function declares of its symbolic variables makes them.

An importer slices a table of 512 positions to a sequence's length: ``min(s, 512)``, unless it is known that ``s`` is no
more. TVM adds no tensor of ``min(s, 512)`` to one of ``s``: the sum has no shape, and what follows cannot be compiled.
The function says it all the same, as PyTorch's ``Dim("s", max=500)`` does, in ``tir_var_upper_bound``.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .. import compat
from ..graph.extent import as_expr
from ..module_pass import module_pass
from .functions import own_functions, with_own_functions, with_result_inferred
from .operators import operator_name
from .views import shape_of

ATTRIBUTE = "tir_var_upper_bound"
"""Of a function: by the name of a variable, the greatest value that it has."""

SLICE = "relax.strided_slice"


@module_pass
class DeclaredBounds:
    """Simplify the shapes of functions that declare upper bounds, and slices that are known to stay within a tensor."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the functions that declare some."""
        if not any(_declared(func) for _, func in own_functions(mod)):
            return mod
        return with_own_functions(mod, _simplified)


def _declared(func: Any) -> dict[str, int]:
    given = dict(func.attrs or {}).get(ATTRIBUTE) or {}
    return {str(variable): int(value) for variable, value in given.items()}


def _simplified(func: Any) -> Any:
    most, analyzer = _declared(func), compat.Analyzer()
    for var in relax.analysis.defined_symbolic_vars(func):
        if most.get(var.name, -1) >= 0:
            compat.bind_range(analyzer, var, compat.const(most[var.name] + 1, "int64"))
    mutator = _Mutator(analyzer)
    made = mutator.visit_expr(func)
    return with_result_inferred(made) if mutator.changed else func


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, analyzer: Any) -> None:
        super().__init__()
        self.analyzer, self.changed = analyzer, False

    def visit_shape_expr_(self, shape: Any) -> Any:  # pylint: disable=arguments-renamed
        values = [self.analyzer.simplify(value) for value in shape.values]
        if all(compat.structural_equal(a, b) for a, b in zip(values, shape.values)):
            return shape
        self.changed = True
        return relax.ShapeExpr(values)

    def visit_call_(self, call: Any) -> Any:  # pylint: disable=arguments-renamed
        call = super().visit_call_(call)
        if operator_name(call) != SLICE or call.attrs.assume_inbound or not self._is_within(call):
            return call
        self.changed = True
        return relax.op.strided_slice(*call.args, assume_inbound=True)

    def _is_within(self, call: Any) -> bool:
        """Whether a slice begins and ends in the tensor, wherever its ends are."""
        shape, (axes, begin, end, *strides) = shape_of(call.args[0]), call.args[1:]
        parts = [list(getattr(part, "fields", None) or ()) for part in (axes, begin, end, *strides)]
        if shape is None or any(len(part) != len(parts[0]) for part in parts):
            return False
        if any((compat.int_value(stride) or 0) < 1 for part in parts[3:] for stride in part):
            return False
        for axis, first, last in zip(*parts[:3]):
            number = compat.int_value(axis)
            if number is None:
                return False
            extent = as_expr(shape[number])
            order = (as_expr(0) <= first, first <= last, last <= extent)
            if not all(self.analyzer.can_prove(each) for each in order):
                return False
        return True
