# SPDX-License-Identifier: Apache-2.0
"""FuseRest: TVM's ``FuseOps`` for operators that no scope took, without its fault with tuples.

While ``FuseOps`` runs, elements of tuples that another kernel or the caller gives are hidden behind variables of
their own.

``FuseOps`` gives a kernel that reads elements of tuples the elements as parameters, in the place of the tuples. After
the fault, the function reads variables that are not parameters.

Fault: With two or more tuples, ``FuseOps`` may drop the wrong tuples from a kernel's parameters, depending on the
    order of a hash table. ``FuseTIR`` then fails.
Seen in: TVM 0.27.0
Input: a chain of additions over two elements of each of nine tuple parameters
Upstream: none known
"""

from __future__ import annotations

import tvm
from tvm import relax

from ... import compat
from ...relax.rewriting.extents import is_unusual
from ...relax.rewriting.functions import with_own_functions
from ...relax.rewriting.operators import OPAQUE_PATTERN, operator_name
from ...support.module_pass import module_pass
from ..prim_funcs import is_scheduled, with_prim_funcs


@module_pass
class FuseRest:
    """Fuse the operators that no stitch op took, as TVM's ``FuseOps`` does.

    ``FuseOps`` alone loses parameters of functions that read elements of several tuples.

    The pass takes a module after ``AnnotateTIROpPattern``, with or without stitch ops (:class:`MergeStitchOps`). It
    takes the place of ``FuseOps`` before ``FuseTIR``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Fuse the remaining operators."""
        mod = with_prim_funcs(mod, _left_alone)
        hidden = with_own_functions(mod, lambda func: _Hidden(mod).visit_expr(func))
        fused = relax.transform.FuseOps()(hidden)
        return with_own_functions(fused, lambda func: _Shown().visit_expr(func))


def _left_alone(_name: str, func: compat.PrimFunc) -> compat.PrimFunc | None:
    """Return a function that cannot be merged marked, so that nothing is fused into it.

    Such functions are scheduled already, or their parameters have an extent that ``FuseOps`` cannot copy. Or an extent
    is no int64, as a number in TVMScript is: ``FuseTIR`` then fails, since the tensors' extents are int64.
    """
    shapes = [buffer.shape for _param, buffer in compat.prim_func_params(func) if buffer is not None]
    extents = [extent for shape in shapes for extent in shape]
    merges = all(compat.dtype_of(extent) == "int64" and not is_unusual(extent) for extent in extents)
    if merges and not is_scheduled(func):
        return None
    return func.with_attr("op_pattern", OPAQUE_PATTERN)


@relax.expr_functor.mutator
class _Hidden(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__()
        self.mod = mod

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        value = binding.value
        if not isinstance(value, relax.TupleGetItem) or not isinstance(binding.var, relax.DataflowVar):
            return
        item = self.visit_expr(binding.var)
        if isinstance(binding.var.ty, relax.TensorType) and self._is_opaque(
            self.visit_expr(value.tuple_value)
        ):
            self.set_var_remap(binding.var, self.builder_.match_cast(item, binding.var.ty))

    def _is_opaque(self, var: relax.Var) -> bool:
        """Return True if a tuple is a parameter, or the result of a call that nothing is fused into."""
        call = self.lookup_binding(var) if isinstance(var, relax.Var) else var
        if not isinstance(call, relax.Call):
            return not isinstance(call, relax.Tuple)  # a parameter, or an element of one
        if operator_name(call) != "relax.call_tir":
            return True
        attrs = dict(self.mod[call.args[0]].attrs or {})
        return int(attrs.get("op_pattern", -1)) == OPAQUE_PATTERN


@relax.expr_functor.mutator
class _Shown(relax.PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        value = self.visit_expr(binding.value)
        definition = self.lookup_binding(value) if isinstance(value, relax.DataflowVar) else None
        is_item = isinstance(definition, relax.TupleGetItem) and isinstance(binding.var, relax.DataflowVar)
        if is_item and compat.structural_equal(value.ty, binding.ty):
            self.set_var_remap(binding.var, value)
            return
        super().visit_match_cast_(binding)
