# SPDX-License-Identifier: Apache-2.0
"""SerialTasks: run a loop over tasks serially in a call with little work. Both loops share one body."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.analysis import undefined_vars

from ... import compat
from ...codegen.cpu.tasks import SERIAL_WHERE
from ...graph.dtype import item_bytes
from ...repairs.prim_funcs import is_scheduled, with_body
from ...support.module_pass import module_pass
from .separate_tasks import TASK_ATTR

STACK_BYTES = 1024
"""Buffers of at least this many bytes are not put on the stack by TVM (``kMaxStackAlloca``)."""

DROPPED = ("global_symbol", "tirx.noalias")
"""Attributes that the tasks' functions do not get.

TVM's closures of parallel loops know nothing of aliases either. With these attributes, LLVM would move loads behind
stores, and compute adjacent values one vector after the other. On SSE a symbolic GELU then takes 1.25 times as long,
though it uses less of the stack. With AVX-512 both take as long.
"""


@module_pass
class SerialTasks:
    """Replace every parallel loop marked ``tvm_stitch.serial_where`` by a branch over it and a serial one.

    The body becomes a private function that both loops call: it is lowered and compiled once. The pass runs after all
    other passes over a module's kernels, because it adds functions that no Relax function calls.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Rewrite the scheduled PrimFuncs."""
        done: dict[Any, Any] = {}
        names = {gvar.name_hint for gvar in mod.functions}
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and is_scheduled(func):
                branches = _Branches(func, gvar.name_hint, names)
                if branches.tasks:
                    done |= {gvar: branches.result, **branches.tasks}
        if not done:
            return mod
        mod = mod.clone()
        for gvar, func in done.items():
            mod.update_func(gvar, func)
        return mod


class _Branches:
    """A PrimFunc with its marked loops rewritten (``result``), and the functions of their tasks (``tasks``)."""

    def __init__(self, func: tirx.PrimFunc, name: str, names: set[str]):
        self.tasks: dict[Any, Any] = {}
        self._func, self._name, self._names = func, name, names
        buffers = [buffer for _, buffer in compat.prim_func_params(func) if buffer is not None]
        self._symbols = [
            var for buffer in buffers for extent in buffer.shape for var in undefined_vars(extent)
        ]
        body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, self._branch), order="post")
        self.result = with_body(func, body)

    def _branch(self, stmt: tirx.Stmt) -> Any:
        if stmt.attr_key != SERIAL_WHERE:
            return stmt
        loop = stmt.body
        if not isinstance(loop, tirx.For) or loop.kind != tirx.ForKind.PARALLEL:
            return loop  # a single task, or a loop that was proved to have one
        memory, body = _without_memory(loop.body)
        if memory is None:
            return loop
        task = _sequence([*map(tirx.AllocBuffer, memory), tirx.Evaluate(self._call(body))])
        return tirx.IfThenElse(
            stmt.value, _with_loop(loop, tirx.ForKind.SERIAL, task, memory), _with_loop(loop, loop.kind, task, memory)
        )  # fmt: skip

    def _call(self, body: Any) -> Any:
        """Return the call of a new function whose body is a task."""
        scalars: dict[Any, None] = {}
        buffers: list[Any] = []
        for var in undefined_vars(body):
            if compat.kind(var.ty) != "BufferType":
                scalars[var] = None
                continue
            buffers.append(var)
            for extent in (*var.shape, *(var.strides or ()), var.elem_offset):
                scalars |= dict.fromkeys(undefined_vars(extent) if extent is not None else ())
        data = [tirx.Var(buffer.name, buffer.data.ty) for buffer in buffers]
        declared = [
            tirx.DeclBuffer(buffer, data=position) for buffer, position in zip(buffers, data, strict=True)
        ]
        passed = {var: self._passed(var) for var in scalars}
        bound = [
            tirx.Bind(var, tirx.Cast(var.ty, given)) for var, (given, _) in passed.items() if given is not var
        ]
        params = [*data, *(given for given, _ in passed.values())]
        done = tirx.Return(compat.const(0, "int32"))
        func = tirx.PrimFunc(params, _sequence([*bound, *declared, body, done]), tvm.ir.PrimType("int32"))
        func = func.with_attr(TASK_ATTR, True)
        for key, value in (self._func.attrs or {}).items():
            if key not in DROPPED:
                func = func.with_attr(key, value)
        gvar = tvm.ir.GlobalVar(self._new_name())
        self.tasks[gvar] = func
        args = [*(buffer.data for buffer in buffers), *(value for _, value in passed.values())]
        return tvm.ir.Call(gvar, args, ret_ty=func.ty.ret)

    def _passed(self, var: Any) -> tuple[Any, Any]:
        """Return a scalar's parameter, and the value that is passed for it.

        TVM makes variables that the function binds int32 if it finds that they fit, also in calls of functions. The
        parameters of those functions keep their types. A cast to a type that these variables never have protects the
        call.
        """
        if compat.dtype_of(var) != "int64" or any(var.same_as(symbol) for symbol in self._symbols):
            return var, var
        return tirx.Var(var.name, tvm.ir.PrimType("uint64")), tirx.Cast("uint64", var)

    def _new_name(self) -> str:
        name, number = f"{self._name}_task", 1
        while name in self._names:
            name, number = f"{self._name}_task_{number}", number + 1
        self._names.add(name)
        return name


def _without_memory(body: tirx.Stmt) -> tuple[list[Any] | None, Any]:
    """Return the buffers that a task asks the runtime for, and the task without them.

    TVM asks the runtime only in functions with a global symbol. The first result is None if the size of a buffer
    follows from values that the task computes.
    """
    allocations: list[Any] = []

    def change(step: Any) -> Any:
        extents = [compat.int_value(extent) for extent in step.buffer.shape]
        known = [extent for extent in extents if extent is not None]
        if (
            len(known) == len(extents)
            and prod(known) * item_bytes(compat.buffer_dtype(step.buffer)) < STACK_BYTES
        ):
            return step
        allocations.append(step.buffer)
        return tirx.Evaluate(compat.const(0, "int32"))

    rest = tvm_ffi.structural_map(body, (tirx.AllocBuffer, change), order="post")
    given = undefined_vars(body)
    sized = [var for buffer in allocations for extent in buffer.shape for var in undefined_vars(extent)]
    if any(not any(var.same_as(each) for each in given) for var in sized):
        return None, body
    return allocations, rest


def _with_loop(loop: Any, kind: Any, body: Any, memory: Sequence[Any]) -> Any:
    """Return a loop of another kind and body, with a variable and buffers of its own."""
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    changes = {loop.loop_var: var} | {buffer: _like(buffer) for buffer in memory}
    body = tvm_ffi.structural_map(body, (type(var), lambda v: changes.get(v, v)), order="post")
    return tirx.For(var, loop.min, loop.extent, kind, body)


def _like(buffer: Any) -> Any:
    return tirx.decl_buffer(
        list(buffer.shape), compat.buffer_dtype(buffer), buffer.name, scope=buffer.scope()
    )


def _sequence(steps: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(list(steps))
