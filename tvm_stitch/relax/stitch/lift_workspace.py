# SPDX-License-Identifier: Apache-2.0
"""LiftWorkspace: turn a kernel's scratch memory into unused results of its calls, which the memory planner places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from ... import compat
from ...codegen.gpu.memory.scratch import WORKSPACE_ATTR
from ...support.module_pass import module_pass
from .dataflow import is_call_tir, result_types


@tvm.error.register_error  # keeps its type on the way through a pass
class WorkspaceError(ValueError):
    """A function that needs workspace is called in a way that cannot supply it."""


@module_pass
class LiftWorkspace:
    """Give every call of a function with scratch parameters the memory for them.

    A PrimFunc with the attribute ``tvm_stitch.workspace`` = N writes N buffers beyond its results, as its last
    parameters. Each ``call_tir`` of it gets N more results, of the buffers' shapes written in the caller's symbols.
    Nothing reads these results. So StaticPlanBlockMemory plans scratch as it plans any intermediate tensor, with
    reuse, and RewriteCUDAGraph captures the calls. Calls that have the results already stay as they are.

    Raises:
        WorkspaceError: when such a function is called otherwise than by ``call_tir``, or with another number of
            arguments and results. Also when a scratch buffer's shape does not follow from a call's arguments and
            results.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the calls in all Relax functions."""
        wanted = {
            gvar: int(func.attrs[WORKSPACE_ATTR])
            for gvar, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and func.attrs and func.attrs.get(WORKSPACE_ATTR)
        }
        if not wanted:
            return mod
        lifter = _Lifter(mod, wanted)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                lifter.builder_.update_func(gvar, lifter.lift(func))
        lifted = lifter.builder_.get()
        functions = {lifter.renewed.get(g, g): f for g, f in lifted.functions_items()}
        return tvm.IRModule(functions, attrs=lifted.attrs, global_infos=lifted.global_infos)


@visitor
class _WholeUses(PyExprVisitor):
    """Finds the variables that are used otherwise than by taking one of their items."""

    def __init__(self) -> None:
        self.found: set[Any] = set()

    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> None:
        if not isinstance(op.tuple_value, relax.Var):
            self.visit_expr(op.tuple_value)

    def visit_var_(self, op: relax.Var) -> None:
        self.found.add(op)

    visit_dataflow_var_ = visit_var_

    def visit_var_def_(self, var: relax.Var) -> None:
        """Ignore definitions, which are not uses."""


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, wanted: Mapping[tvm.ir.GlobalVar, int]):
        super().__init__(mod)
        self.mod, self.wanted = mod, wanted
        self.whole: set[Any] = set()
        # A global variable keeps its first type, but scheduling has given the function more parameters since.
        self.renewed: dict[Any, Any] = {}
        for gvar in wanted:
            self.renewed[gvar] = tvm.ir.GlobalVar(gvar.name_hint)
            relax.expr._update_type(self.renewed[gvar], mod[gvar].ty)

    def lift(self, func: relax.Function) -> relax.Function:
        uses = _WholeUses()
        uses.visit_expr(func)
        self.whole = uses.found
        return self.visit_expr(func)

    def visit_global_var_(
        self, gvar: tvm.ir.GlobalVar
    ) -> tvm.ir.GlobalVar:  # not reached for calls that are rewritten
        if gvar in self.wanted:
            raise WorkspaceError(f"{gvar.name_hint} needs workspace: it can only be called by R.call_tir")
        return gvar

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        by_item = isinstance(var, relax.DataflowVar) and var not in self.whole
        if self._lacks_workspace(value) and len(result_types(value)) > 1 and by_item:
            # The items keep their indices, so the longer tuple replaces the program's tuple.
            self.set_var_remap(var, self.builder_.emit(self._extended(value), var.name))
            return
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:  # pylint: disable=arguments-renamed
        if not self._lacks_workspace(call):
            if is_call_tir(call) and call.args[0] in self.wanted:
                args = [self.renewed[call.args[0]], *(self.visit_expr(a) for a in call.args[1:])]
                return relax.Call(call.op, args, call.attrs, call.ty_args)
            return super().visit_call_(call)
        results = len(result_types(call))
        longer = self.builder_.emit(self._extended(call))
        items = [relax.TupleGetItem(longer, i) for i in range(results)]
        if not isinstance(call.ty_args[0], relax.TupleType):
            return items[0]
        return relax.Tuple([self.builder_.emit(item) for item in items])

    def _lacks_workspace(self, value: relax.Expr) -> bool:
        """Return True for a call that has to be rewritten."""
        if not is_call_tir(value) or value.args[0] not in self.wanted:
            return False
        gvar = value.args[0]
        params, count = self.mod[gvar].params, self.wanted[gvar]
        given = len(_arguments(value)) + len(result_types(value))
        if given not in (len(params), len(params) - count):
            raise WorkspaceError(
                f"{gvar.name_hint} has {len(params)} parameters, {count} of them workspace, and is called with "
                f"{given} arguments and results: declare the workspace as the last parameters, after the results"
            )
        return given < len(params)

    def _extended(self, call: relax.Call) -> relax.Call:
        gvar = call.args[0]
        args, results = _arguments(call), result_types(call)
        workspace = workspace_types(self.mod[gvar], self.wanted[gvar], [*args, *results], name=gvar.name_hint)
        visited = relax.Tuple([self.visit_expr(a) for a in args])
        return self.builder_.normalize(relax.call_tir(self.renewed[gvar], visited, [*results, *workspace]))


def workspace_types(
    func: tirx.PrimFunc, count: int, given: Sequence[Any], name: str = "the function"
) -> list[relax.TensorType]:
    """Return the tensor types of the last ``count`` parameters of ``func`` in a caller's symbols.

    Args:
        func: a PrimFunc.
        count: the number of its last parameters that are workspace.
        given: the caller's arguments for the others, in order: expressions, or tensor types (for results).
        name: the function's name, for messages.

    Raises:
        WorkspaceError: when a shape has symbols that no other parameter's shape or value gives.
    """
    params = compat.prim_func_params(func)
    symbols = _symbols(params, given)
    types = []
    for _, buffer in params[len(params) - count :]:
        if buffer is None:
            raise WorkspaceError(
                f"{name} says that its last {count} parameters are workspace; one is a scalar"
            )
        shape = []
        for extent in buffer.shape:
            missing = sorted(str(v) for v in compat.free_vars(extent) if v not in symbols)
            if missing:
                raise WorkspaceError(
                    f"workspace {buffer.name} of {name} has the shape {list(buffer.shape)}, and {missing[0]} is "
                    "neither an extent of a parameter nor a scalar parameter: pass it as one"
                )
            shape.append(_int64(compat.substitute(extent, symbols)))
        types.append(relax.TensorType(shape, compat.buffer_dtype(buffer)))
    return types


def _symbols(params: Sequence[tuple[Any, Any]], given: Sequence[Any]) -> dict[Any, Any]:
    """Return the caller's values of the variables in a function's shapes."""
    symbols: dict[Any, Any] = {}
    for (param, buffer), value in zip(params, given):
        if buffer is None:
            symbols[param] = value
            continue
        ty = value if isinstance(value, relax.TensorType) else value.ty
        shape = getattr(ty, "shape", None)
        if shape is None:
            continue
        for formal, actual in zip(buffer.shape, shape):
            if compat.kind(formal) in ("Var", "SizeVar"):
                symbols.setdefault(formal, actual)
    return symbols


def _int64(extent: Any) -> Any:
    """Return an extent as an int64, which Relax requires."""
    value = compat.int_value(extent)
    if value is not None:
        return compat.const(value, "int64")
    extent = compat.Analyzer().simplify(extent)
    return extent if compat.dtype_of(extent) == "int64" else compat.tir.Cast("int64", extent)


def _arguments(call: relax.Call) -> list[relax.Expr]:
    args = call.args[1]
    return list(args.fields) if isinstance(args, relax.Tuple) else [args]
