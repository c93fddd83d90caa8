# SPDX-License-Identifier: Apache-2.0
"""The operators of a model before any pass, which reports trace kernels to.

An importer that keeps the names of its format stores them in the spans of calls. One is
:mod:`tvm_stitch.importers.onnx.names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ...report.owners import Step, inherited
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.values import bindings_of, operands_of, tensor_types, value_of

_NONE = ("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")
"""Operators on shapes, which compute no tensor of the model."""


@dataclass(frozen=True)
class Source:
    """One operator of a function: its result's name and type, its kind, and its name in the importer's format."""

    function: str
    name: str
    operator: str
    source: str
    shape: str
    dtype: str


def source_operators(mod: tvm.IRModule) -> tuple[list[Source], list[Step]]:
    """Return the operators of a module's own functions in order, and the dependencies between them."""
    operators: list[Source] = []
    steps: list[Step] = []
    for gvar, func in sorted(own_functions(mod), key=lambda pair: str(pair[0].name_hint)):
        makers: dict[Any, tuple[int, ...]] = {}
        for binding in bindings_of(func.body):
            value, var = binding.value, binding.var
            before = tuple(dict.fromkeys(i for v in operands_of(value) for i in makers.get(v, ())))
            types = tensor_types(var.ty)
            if not isinstance(value, relax.Call) or not types or operator_name(value) in _NONE:
                makers[var] = before
                if not isinstance(value, relax.Call) and len(before) == 1:
                    (i,) = before  # another name, or one result of several
                    steps[i] = Step((*steps[i].values, str(var.name)), steps[i].producers)
                continue
            told = value_of(str(var.name), types[0])
            makers[var] = (len(operators),)
            steps.append(Step((told.name,), before))
            operators.append(
                Source(str(gvar.name_hint), told.name, _operator(value), _span(value), told.shape, told.dtype)
            )
    names = inherited([s.source for s in operators], steps)
    return [
        Source(s.function, s.name, s.operator, n, s.shape, s.dtype) for s, n in zip(operators, names)
    ], steps


def _operator(call: relax.Call) -> str:
    """Return the operator of a call, such as ``nn.softmax``, or the name of the function that it calls."""
    name = operator_name(call)
    if name in ("relax.call_tir", "relax.call_dps_packed", "relax.call_pure_packed") and len(call.args):
        callee = call.args[0]
        return str(getattr(callee, "name_hint", None) or getattr(callee, "global_symbol", name))
    return name.removeprefix("relax.") or str(getattr(call.op, "name_hint", "call"))


def _span(call: relax.Call) -> str:
    """Return the name in a call's span, or "" if the span has a line, because it then is a position in a file."""
    span = getattr(call, "span", None)
    if span is None or span.source_name is None or int(span.line) > 0:
        return ""
    return str(span.source_name.name)
