# SPDX-License-Identifier: Apache-2.0
"""Evaluate a Relax module in float64 NumPy: the reference for compiled results.

Inputs and constants have the values that their dtype holds, and a cast (``astype``) rounds to its dtype. Every other
operator is computed in float64 for operands of any float dtype, so a float16 add is exact here. A compiled float16 or
bfloat16 function differs from it by its roundings. Choose tolerances accordingly
(:mod:`stitch_testing.reference.bounds` derives them). Integers and booleans are exact, with their dtype's
wrap-around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, sym, tirx

from .operators import Operation
from .values import RULES, Exact, flatten, mismatches

__all__ = ["Frame", "Interpreter", "evaluate", "flatten", "mismatches", "operation_of"]


def evaluate(mod: tvm.IRModule, inputs: Sequence[np.ndarray], func: str = "main") -> list[np.ndarray]:
    """Evaluate ``mod[func]``, given before legalization, on ``inputs``.

    Parameters
    ----------
    inputs : one array per parameter. Its shape binds symbolic extents.

    Returns
    -------
    One array per output, nested tuples flattened. It is float64 for any float dtype (not rounded to that dtype), else
    of the output's own integer or boolean dtype.

    Raises
    ------
    NotImplementedError : for an operator or expression without a rule, which the message names.
    ValueError : for inputs that do not fit the function's signature.
    """
    return flatten(Interpreter(mod).call(func, inputs))


def operation_of(call: relax.Call) -> Operation:
    """Return the description of an operator's call for the rules."""
    dtype = _dtype(call.ty) if isinstance(call.ty, relax.TensorType) else ""
    return Operation(call.op.name.removeprefix("relax."), call.attrs, dtype)


class Interpreter:
    """Walks a Relax function. ``values`` defines a tensor's value and the operators on it."""

    def __init__(self, mod: tvm.IRModule, values: Exact | None = None) -> None:
        self.mod = mod
        self.values = values or Exact()

    def call(self, name: str | tvm.ir.GlobalVar, inputs: Sequence[np.ndarray]) -> Any:
        """Return the value of function ``name`` on raw arrays."""
        function = self.mod[name]
        if len(inputs) != len(function.params):
            raise ValueError(f"{name} takes {len(function.params)} arguments, got {len(inputs)}")
        values = []
        for param, array in zip(function.params, inputs, strict=True):
            if not isinstance(param.ty, relax.TensorType):
                raise NotImplementedError(f"parameter {param.name_hint} of type {param.ty}")
            values.append(self.values.wrap(np.asarray(array), _dtype(param.ty)))
        return self._run(function, values)

    def _run(self, function: relax.Function, values: list[Any]) -> Any:
        frame = Frame(self)
        for param, value in zip(function.params, values, strict=True):
            frame.values[param] = value
            frame.bind_extents(param.ty, value)
        return frame.expr(function.body)


class Frame:
    """One call of one function: the values of its variables and symbolic extents."""

    def __init__(self, owner: Interpreter) -> None:
        self.owner = owner
        self.values: dict[Any, Any] = {}
        self.extents: set[Any] = set()
        self.analyzer = sym.Analyzer()

    def bind_extents(self, ty: Any, value: Any) -> None:
        """Set the symbolic extents in ``ty`` to the sizes of ``value``, and check the known ones."""
        if isinstance(ty, relax.TupleType):
            for field, part in zip(ty.fields, value, strict=True):
                self.bind_extents(field, part)
            return
        if isinstance(ty, relax.TensorType) and ty.shape is not None:
            declared, actual = ty.shape.values, self.owner.values.shape(value)
        elif isinstance(ty, relax.ShapeType) and ty.values is not None:
            declared, actual = ty.values, value
        else:
            return
        if len(declared) != len(actual):
            raise ValueError(f"shape {actual} does not match {list(declared)}")
        for extent, size in zip(declared, actual, strict=True):
            if isinstance(extent, tirx.Var) and extent not in self.extents:
                self.extents.add(extent)
                self.analyzer.bind(extent, tirx.IntImm(str(extent.ty), size))
            elif self.scalar(extent) != size:
                raise ValueError(f"shape {actual} does not match {list(declared)}")

    def scalar(self, expr: Any) -> int | float:
        """Return the value of a primitive expression over symbolic extents."""
        if isinstance(expr, (int, float)):
            return expr
        simple = self.analyzer.simplify(expr)
        if not isinstance(simple, (tirx.IntImm, tirx.FloatImm)):
            raise ValueError(f"{expr} is not known: its symbols are in no argument's shape")
        return simple.value

    def expr(self, expr: Any) -> Any:
        """Return the value of any Relax expression."""
        if isinstance(expr, relax.Var) and expr in self.values:
            return self.values[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return self.owner.values.wrap(expr.value.numpy(), _dtype(expr.ty))
        if isinstance(expr, relax.ShapeExpr):
            return tuple(int(self.scalar(value)) for value in expr.values)
        if isinstance(expr, relax.Tuple):
            return tuple(self.expr(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.expr(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, relax.SeqExpr):
            return self._sequence(expr)
        if isinstance(expr, relax.If):
            return self.expr(expr.true_branch if bool(self.expr(expr.cond)) else expr.false_branch)
        if isinstance(expr, relax.Call):
            return self._call(expr)
        if isinstance(expr.ty, tvm.ir.PrimType):
            return self.scalar(expr)
        raise NotImplementedError(f"expression {type(expr).__name__}: {expr}")

    def _sequence(self, sequence: relax.SeqExpr) -> Any:
        bindings = [binding for block in sequence.blocks for binding in block.bindings]
        last_use: dict[Any, int] = {}
        for place, binding in enumerate(bindings):
            value = binding.value
            for variable in relax.analysis.free_vars(value):
                last_use[variable] = place
        for variable in relax.analysis.free_vars(sequence.body):
            last_use[variable] = len(bindings)
        dying: dict[int, list[Any]] = {}
        for variable, place in last_use.items():
            dying.setdefault(place, []).append(variable)
        bound = {binding.var for binding in bindings}
        for place, binding in enumerate(bindings):
            value = self.expr(binding.value)
            self.values[binding.var] = value
            if isinstance(binding, relax.MatchCast):
                self.bind_extents(binding.ty, value)
            for variable in dying.get(place, ()):
                if variable in bound:  # large workloads would not fit if every value were kept to the end
                    del self.values[variable]
        return self.expr(sequence.body)

    def _call(self, call: relax.Call) -> Any:
        args = [self.expr(arg) for arg in call.args]
        if isinstance(call.op, tvm.ir.GlobalVar):
            function = self.owner.mod[call.op]
            if not isinstance(function, relax.Function):
                raise NotImplementedError(f"call of {call.op.name_hint}, which is no Relax function")
            return self.owner._run(function, args)
        if not isinstance(call.op, tvm.ir.Op):
            raise NotImplementedError(f"call of {call.op}")
        operation = operation_of(call)
        rule = RULES.get(operation.name)
        if rule is None:
            raise NotImplementedError(f"operator {call.op.name}")
        return self.owner.values.apply(rule, operation, args)


def _dtype(ty: relax.TensorType) -> str:
    return str(ty.dtype.dtype if hasattr(ty.dtype, "dtype") else ty.dtype)
