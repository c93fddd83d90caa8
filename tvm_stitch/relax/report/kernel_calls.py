# SPDX-License-Identifier: Apache-2.0
"""The kernels that a lowered Relax module calls, in order, and the values that go from one to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax, tirx

from ...compute.cpu.emit import COMPUTE_ATTR
from ...execution.count import is_compute_intensive
from ...report.data import Value
from ..in_place.rows import WRITTEN_ATTR
from ..rewriting.functions import own_functions
from ..rewriting.marked_names import is_fresh, whole_of
from ..rewriting.operators import operator_name
from ..rewriting.values import bindings_of, operands_of, tensor_types, value_of

_PACKED = ("relax.call_dps_packed", "relax.call_pure_packed", "relax.call_inplace_packed")
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
_SCRATCH = ("relax.builtin.alloc_tensor", "relax.vm.alloc_tensor", "relax.memory.alloc_tensor")


def _written(value: Any, name: str, func: Any) -> dict[int, tuple[relax.Expr, int | None]]:
    """Return for each result that is a tensor with a part written in place the tensor, and the bytes written."""
    sizes = func.attrs.get(WRITTEN_ATTR) if func is not None and func.attrs else None
    if name != "relax.call_tir_inplace" or sizes is None:
        return {}
    results = [(i, int(at)) for i, at in enumerate(value.attrs.inplace_indices) if int(at) >= 0]
    fields = value.args[1].fields
    return {
        i: (fields[at], int(size) if int(size) >= 0 else None)
        for (i, at), size in zip(results, sizes, strict=True)
    }


@dataclass(eq=False)
class Call:
    """A call of a kernel: its function and caller, its operands and results, and the calls that it depends on.

    ``producers`` gives by call the values that come from it. ``external`` says that a function outside the module is
    called. ``marked`` says that the kernel is this package's own for a compute-intensive operator, and ``contracts``
    that the kernel has a contraction.
    """

    caller: str
    function: str
    external: bool
    marked: bool
    contracts: bool = False
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    producers: dict[int, list[Value]] = field(default_factory=dict)


@dataclass
class Calls:
    """The calls of all functions of a module, and by function the values that are views of others.

    ``contractions`` says of each function that is called whether it has a contraction.
    """

    calls: list[Call] = field(default_factory=list)
    views: dict[str, set[str]] = field(default_factory=dict)
    contractions: dict[str, bool] = field(default_factory=dict)

    def written(self, function: str) -> dict[str, int]:
        """Return, for the values of a function, the index of the call that computes each, by the value's name."""
        own = [(v.name, i) for i, c in enumerate(self.calls) if c.caller == function for v in c.results]
        # A kernel may write a value in another shape, of which no kernel or a later one makes the value itself.
        return {whole_of(name): i for name, i in own if not is_fresh(whole_of(name))} | dict(own)

    def calls_of(self, function: str) -> list[Call | None]:
        """Return the calls of all functions, with None in place of the calls of other functions than ``function``."""
        return [call if call.caller == function else None for call in self.calls]


def kernel_calls(mod: tvm.IRModule) -> Calls:
    """Return the kernel calls of a module whose operators are functions. Views, allocations and shapes do not count."""
    calls = Calls()
    for gvar, func in sorted(own_functions(mod), key=lambda pair: str(pair[0].name_hint)):
        _Walk(mod, str(gvar.name_hint), calls).visit(func)
    return calls


class _Walk:
    def __init__(self, mod: tvm.IRModule, caller: str, calls: Calls):
        self.caller, self.found = caller, calls
        self.functions = {str(g.name_hint): f for g, f in mod.functions_items()}
        self.views = calls.views.setdefault(caller, set())
        self.made: dict[Any, list[tuple[int, int]]] = {}  # by variable, the results it holds: call and number
        self.scratch: set[Any] = set()
        self.taken: dict[int, set[int]] = {}  # by call with several results, the numbers of those with a name

    def visit(self, func: relax.Function) -> None:
        for binding in bindings_of(func.body):
            self._bind(binding.var, binding.value)
        self._use(operands_of(func.body.body))
        for index, numbers in self.taken.items():
            call = self.found.calls[index]
            if call.external:  # a library's workspace is a result that nobody reads
                call.results = [result for i, result in enumerate(call.results) if i in numbers]

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        operands = operands_of(value)
        if isinstance(value, relax.TupleGetItem):
            self._take(var, value)
            return
        self._use(operands)
        name = operator_name(value)
        callee = self._callee(value, name)
        if callee is None:
            self.made[var] = [r for v in operands for r in self.made.get(v, ())]
            if name in _VIEWS:
                self.views.add(str(var.name))
            if name in _SCRATCH:
                self.scratch.add(var)
            return
        function, external = callee
        func = self.functions.get(function)
        marked = bool(func is not None and func.attrs and COMPUTE_ATTR in func.attrs)
        call = Call(self.caller, function, external, marked, self._contracts(function))
        index = len(self.found.calls)
        written = _written(value, name, func)
        self._read(call, [v for v in operands if not any(v.same_as(into) for into, _ in written.values())])
        types = tensor_types(var.ty)
        for i, ty in enumerate(types):
            result = value_of(str(var.name) if len(types) == 1 else f"{var.name}[{i}]", ty)
            call.results.append(replace(result, bytes=written[i][1]) if i in written else result)
        self.found.calls.append(call)
        self.made[var] = [(index, i) for i in range(len(types))]

    def _contracts(self, function: str) -> bool:
        """Return whether a function of the module has a contraction."""
        known = self.found.contractions
        if function not in known:
            func = self.functions.get(function)
            known[function] = isinstance(func, tirx.PrimFunc) and is_compute_intensive(func, function)
        return known[function]

    def _use(self, operands: Iterable[relax.Expr]) -> None:
        """Mark all results of a call as read if they are read together."""
        for v in operands:
            if len(tensor_types(v.ty)) > 1:
                for index, number in self.made.get(v, ()):
                    self.taken.setdefault(index, set()).add(number)

    def _take(self, var: relax.Var, value: relax.Expr) -> None:
        """Give one of several results the name that the model has for it."""
        results = self.made.get(value.tuple_value, [])
        fields = len(tensor_types(value.tuple_value.ty))
        if len(results) != fields or not tensor_types(var.ty):
            self.made[var] = results
            return
        index, number = results[int(value.index)]
        self.made[var] = [(index, number)]
        self.taken.setdefault(index, set()).add(number)
        of_call = self.found.calls[index].results
        if of_call[number].name.endswith("]"):
            of_call[number] = value_of(str(var.name), tensor_types(var.ty)[0])

    def _read(self, call: Call, operands: Iterable[relax.Expr]) -> None:
        for v in dict.fromkeys(operands):
            types = tensor_types(v.ty)
            if not types or v in self.scratch:
                continue
            results = self.made.get(v)
            if isinstance(v, tvm.ir.GenericConst):
                call.operands.append(value_of("constant", types[0], "constant"))
            elif not results:
                call.operands += [value_of(str(v.name), ty, "parameter") for ty in types]
            else:
                told = [value_of(str(v.name), ty) for ty in types]
                call.operands += told
                for index, _ in results:
                    call.producers.setdefault(index, []).extend(told)

    def _callee(self, value: relax.Expr, name: str) -> tuple[str, bool] | None:
        """Return the called kernel, and whether it is a function outside the module, or None if no kernel is called.

        The kernels of a Relax function of the module, such as a loop's step, are its own calls.
        """
        if not isinstance(value, relax.Call):
            return None
        if name in ("relax.call_tir", "relax.call_tir_inplace"):
            return str(value.args[0].name_hint), False
        if name in _PACKED:
            return str(getattr(value.args[0], "global_symbol", "a packed function")), True
        if isinstance(value.op, tvm.ir.GlobalVar):
            called = str(value.op.name_hint)
            return None if isinstance(self.functions.get(called), relax.Function) else (called, True)
        if isinstance(value.op, relax.ExternFunc):
            return str(value.op.global_symbol), True
        return None
