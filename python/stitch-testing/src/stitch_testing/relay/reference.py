# SPDX-License-Identifier: Apache-2.0
"""Evaluate a Relay module in float64 NumPy, exactly or with bounds on correct results.

Inputs and constants have the values that their dtype holds, and a cast rounds to its dtype. Every other operator is
computed in float64 for operands of any float dtype, as :mod:`stitch_testing.reference.relax` does for Relax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relay

from ..reference.bounds import Bound, Bounds
from ..reference.values import Exact, flatten
from . import operators, operators_nn
from .operators import Calculator, Translation

TRANSLATIONS: Mapping[str, Translation] = {**operators.TRANSLATIONS, **operators_nn.TRANSLATIONS}
"""The rule of each Relay operator."""


def evaluate(
    mod: tvm.IRModule, inputs: Inputs, params: Params = None, func: str = "main"
) -> list[np.ndarray]:
    """Evaluate ``mod[func]`` on ``inputs``.

    Parameters
    ----------
    inputs : one array for every parameter that ``params`` does not name, in order, or arrays by name.
    params : arrays (NumPy's or TVM's) by parameter name, as given to ``relay.build``.

    Returns
    -------
    One array per output, nested tuples flattened. It is float64 for any float dtype (not rounded to that dtype), else
    of the output's own integer or boolean dtype.

    Raises
    ------
    NotImplementedError : for an operator or expression without a rule, which the message names.
    ValueError : for inputs that do not fit the function's signature.
    """
    return flatten(Evaluator(mod).call(func, inputs, params))


def evaluate_bounds(mod: tvm.IRModule, inputs: Inputs, half_arithmetic: bool = False) -> list[Bound]:
    """Evaluate like :func:`evaluate`, with the least and greatest acceptable result of every element.

    ``half_arithmetic`` allows for sums and approximations of float16 computed in that type, as stock TVM does.
    """
    return flatten(Evaluator(mod, Bounds(half_arithmetic)).call("main", inputs))


Inputs = Sequence[np.ndarray] | Mapping[str, np.ndarray]
Params = Mapping[str, Any] | None


def to_numpy(array: Any) -> np.ndarray:
    """Return a NumPy array of an array of NumPy or TVM. TVM returns bfloat16 as ``uint16``."""
    if isinstance(array, np.ndarray):
        return array
    converted = array.numpy()
    return converted.view(ml_dtypes.bfloat16) if str(array.dtype) == "bfloat16" else converted


class Evaluator:
    """Computes Relay functions of one module. ``values`` defines a tensor's value."""

    def __init__(self, mod: tvm.IRModule, values: Exact | None = None) -> None:
        self.mod = relay.transform.InferType()(mod)
        self.calculator = Calculator(values or Exact())

    def call(self, name: str, inputs: Inputs, params: Params = None) -> Any:
        """Return the value of function ``name`` on raw arrays."""
        function = self.mod[name]
        given = {key: to_numpy(array) for key, array in (params or {}).items()}
        free = [param.name_hint for param in function.params if param.name_hint not in given]
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        else:
            if len(inputs) != len(free):
                raise ValueError(f"{name} takes {len(free)} arguments ({', '.join(free)}), got {len(inputs)}")
            named = dict(zip(free, inputs, strict=True))
        values = []
        for param in function.params:
            key, declared = param.name_hint, param.checked_type
            if not isinstance(declared, relay.TensorType):
                raise NotImplementedError(f"parameter {key} of type {declared}")
            if key not in named and key not in given:
                raise ValueError(f"{name} lacks its argument {key}")
            array = np.asarray(named.get(key, given.get(key)))
            if array.shape != (wanted := tuple(int(extent) for extent in declared.concrete_shape)):
                raise ValueError(f"argument {key} of {name} is of shape {wanted}, not {array.shape}")
            values.append(self.calculator.values.wrap(array, declared.dtype))
        return self.run(function, values)

    def run(self, function: relay.Function, args: Sequence[Any]) -> Any:
        """Return the value of a typed function on values."""
        return Frame(self, dict(zip(function.params, args, strict=True))).expr(function.body)

    def apply(self, call: relay.Call, args: list[Any]) -> Any:
        """Return the value of a typed call on its arguments' values."""
        if isinstance(call.op, tvm.ir.GlobalVar):
            return self.run(self.mod[call.op], args)
        if isinstance(call.op, relay.Function):
            return self.run(call.op, args)
        if not isinstance(call.op, tvm.ir.Op):
            raise NotImplementedError(f"call of {type(call.op).__name__}")
        translation = TRANSLATIONS.get(call.op.name)
        if translation is None:
            raise NotImplementedError(
                f"Relay operator {call.op.name}: say what it means in stitch_testing.relay.operators"
            )
        return translation(self.calculator, call, args)


class Frame:
    """One call of one function: the values of its variables and expressions.

    A list gives the expressions in dependency order. Recursion would fail, because models are deeper than Python's
    stack.
    """

    def __init__(self, owner: Evaluator, values: dict[Any, Any]) -> None:
        self.owner = owner
        self.values = values

    def expr(self, expr: Any) -> Any:
        """Return the value of a typed expression."""
        for node in _post_order(expr, self.values):
            self.values[node] = self._one(node)
        return self.values[expr]

    def _one(self, node: Any) -> Any:
        values = self.values
        if isinstance(node, relay.Call):
            return self.owner.apply(node, [values[arg] for arg in node.args])
        if isinstance(node, relay.Constant):
            return self.owner.calculator.values.wrap(to_numpy(node.data), str(node.data.dtype))
        if isinstance(node, relay.Tuple):
            return tuple(values[field] for field in node.fields)
        if isinstance(node, relay.TupleGetItem):
            return values[node.tuple_value][node.index]
        if isinstance(node, relay.Let):
            # A chain of bindings is as deep as the model: this loop replaces recursion.
            body = node
            while isinstance(body, relay.Let):
                values[body.var] = self.expr(body.value)
                body = body.body
            return self.expr(body)
        if isinstance(node, relay.If):
            condition = self.owner.calculator.number(values[node.cond])
            return self.expr(node.true_branch if condition else node.false_branch)
        if isinstance(node, relay.Var):
            raise ValueError(f"variable {node.name_hint} is bound nowhere")
        raise NotImplementedError(f"Relay expression {type(node).__name__}")


def _operands(node: Any) -> list[Any]:
    """Return the expressions whose values a node needs."""
    if isinstance(node, relay.Call):
        return list(node.args)
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value]
    return [node.cond] if isinstance(node, relay.If) else []


def _post_order(expr: Any, known: Mapping[Any, Any]) -> list[Any]:
    """Return the expressions under ``expr`` without a value, each after its operands."""
    order: list[Any] = []
    seen = set()
    stack = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in seen and node not in known:
            seen.add(node)
            stack.append((node, True))
            stack += [(operand, False) for operand in reversed(_operands(node))]
    return order
