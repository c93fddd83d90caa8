# SPDX-License-Identifier: Apache-2.0
"""SkipEmpty: do not compute tensors without elements.

A call whose results have a static extent of 0 becomes allocations. An empty result among others that are not empty
loses its loop. A reduction of nothing, such as a matmul with an empty reduction (K) dimension, becomes its initial
value. That is an element-wise operator, which is stitched like any other.

Fault: TVM's schedules for GPUs divide by the extents of a tensor, and raise for a static extent of 0. Functions that
    do compile launch an empty grid, which is an error.
Seen in: TVM 0.27.0
Input: ``R.permute_dims(R.exp(x), [1, 0])`` of (0, 4) float32, target cuda
Upstream: https://github.com/apache/tvm/issues/20279
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ... import compat
from ...relax.rewriting.operators import operator_name
from ...support.module_pass import module_pass
from ..prim_funcs import REDUCED, with_body, with_prim_funcs


@module_pass
class SkipEmpty:
    """Replace each ``call_tir`` whose results all have a static extent of 0 by allocations that nothing writes to.

    Of a call with several results, the empty ones are no longer computed. On a GPU such a call would launch an empty
    grid, which is an error, and TVM's schedules divide by its extents. A reduction along a static extent of 0 gets
    the number that the reduction begins with. Other extents may be symbolic. Constants without elements become
    allocations as well.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite every Relax function that has such a call, and every PrimFunc with such a result among others."""
        mod = with_prim_funcs(mod, _without_empty_loops)
        skipper = _Skipper(mod)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                after = skipper.visit_expr(func)
                if not after.same_as(func):
                    skipper.builder_.update_func(gvar, after)
        return skipper.builder_.get()


def _without_empty_loops(_name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    started = tvm_ffi.structural_map(func.body, (tirx.For, _as_it_begins), order="pre")
    return with_body(func, tvm_ffi.structural_map(started, (tirx.SeqStmt, _those_that_run), order="post"))


def _as_it_begins(nest: Any) -> Any:
    """Return a loop nest that reduces nothing without its reduction loops. Other loop nests stay as they are."""
    loops, stmt = [], nest
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or stmt.block.init is None:
        return nest
    axes = list(zip(stmt.block.iter_vars, stmt.iter_values))
    if all(compat.int_value(axis.dom.extent) != 0 for axis, _value in axes if axis.iter_type == REDUCED):
        return nest
    kept = [(axis, value) for axis, value in axes if axis.iter_type != REDUCED]
    needed = set().union(*[compat.free_vars(value) for _axis, value in kept])
    block = stmt.block
    statement: Any = s_tir.SBlock(
        [axis for axis, _value in kept],
        [],
        block.writes,
        block.name_hint,
        block.init,
        annotations=block.annotations,
    )
    statement = s_tir.SBlockRealize([value for _axis, value in kept], stmt.predicate, statement)
    for loop in reversed([loop for loop in loops if loop.loop_var in needed]):
        statement = tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, statement, annotations=loop.annotations
        )
    return statement


def _those_that_run(sequence: Any) -> Any:
    kept = [stmt for stmt in sequence.seq if not _never_runs(stmt)]
    if len(kept) in (0, len(sequence.seq)):
        return sequence
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def _never_runs(stmt: tirx.Stmt) -> bool:
    """Return True for a loop nest without iterations that is not a reduction. A reduction of nothing has a result."""
    empty = False
    while isinstance(stmt, tirx.For):
        empty = empty or compat.int_value(stmt.extent) == 0
        stmt = stmt.body
    return empty and isinstance(stmt, s_tir.SBlockRealize) and stmt.block.init is None


@mutator
class _Skipper(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if operator_name(call) == "relax.call_tir":
            types = call.ty_args[0]
            if type(types).__name__ != "TupleType":
                if is_empty(types):
                    return _nothing(types)
            elif len(types.fields) and all(is_empty(ty) for ty in types.fields):
                return relax.Tuple([_nothing(ty) for ty in types.fields])
        return super().visit_call_(call)

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        return _nothing(item.ty) if is_empty(item.ty) else super().visit_tuple_getitem_(item)

    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        # TVM 0.27 writes a constant of shape (6, 0) in a form that it cannot read again.
        return _nothing(constant.ty) if is_empty(constant.ty) else super().visit_generic_const_(constant)


def is_empty(ty: relax.Type) -> bool:
    """Return True for the type of a tensor without elements, whatever values its symbols have."""
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and any(compat.int_value(s) == 0 for s in shape)


def _nothing(ty: relax.Type) -> relax.Expr:
    return relax.op.builtin.alloc_tensor(ty.shape, str(ty.dtype), 0)
