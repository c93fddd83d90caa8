# SPDX-License-Identifier: Apache-2.0
"""Relax as a front end of the random-graph generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relax

from ..reference.bounds import Bound
from ..reference.relax import Frame, Interpreter
from .front_end import FrontEnd, Made


class RelaxFrontEnd(FrontEnd):
    """Builds one dataflow block with a binding for every operator."""

    dtypes: Mapping[str, float] = {"float32": 0.6, "float16": 0.16, "bfloat16": 0.16, "int32": 0.08}
    ops = relax.op

    def __init__(self) -> None:
        super().__init__()
        self.builder = relax.BlockBuilder()
        self.frame = Frame(Interpreter(tvm.IRModule(), self.values))

    @contextmanager
    def function(self, arguments: Sequence[tuple[tuple[int, ...], str]]) -> Iterator[list[Any]]:
        params = [
            relax.Var(f"x{place}", relax.TensorType(shape, dtype))
            for place, (shape, dtype) in enumerate(arguments)
        ]
        with self.builder.function("main", params):
            with self.builder.dataflow():
                yield params
            outputs = self.outputs
            self.builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        self.mod = self.builder.get()

    def finish(self, results: Sequence[Any]) -> None:
        self.outputs = [self.builder.emit_output(var) for var in results]

    def const(self, value: Any, dtype: str) -> relax.Expr:
        return relax.const(value, dtype)

    def inspect(self, expr: relax.Expr) -> Made:
        call = self.builder.normalize(expr)
        shape = tuple(int(extent) for extent in call.ty.shape.values)
        return Made(call, call.op.name.removeprefix("relax."), shape, str(call.ty.dtype.dtype))

    def evaluate(self, call: relax.Call) -> Bound:
        return self.frame.expr(call)

    def bind(self, call: relax.Call, bound: Bound) -> relax.Var:
        var = self.builder.emit(call)
        self.frame.values[var] = bound
        return var

    def set_value(self, var: relax.Var, bound: Bound) -> None:
        self.frame.values[var] = bound
