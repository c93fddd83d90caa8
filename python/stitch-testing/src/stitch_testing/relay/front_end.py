# SPDX-License-Identifier: Apache-2.0
"""Relay as a front end of the random-graph generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relay

from ..random.front_end import FrontEnd, Made
from ..reference.bounds import Bound
from . import ops
from .reference import Evaluator, Frame

#: Relay's names of operators that have other names in Relax.
_RELAX_NAMES = {"cast": "astype", "transpose": "permute_dims", "concatenate": "concat"}


class RelayFrontEnd(FrontEnd):
    """Builds a dataflow graph without bindings.

    There is no bfloat16: the Relay-era TVM has no abs, pow or casts for it on llvm.
    """

    dtypes: Mapping[str, float] = {"float32": 0.7, "float16": 0.2, "int32": 0.1}
    ops = ops

    def __init__(self) -> None:
        super().__init__()
        self.frame = Frame(Evaluator(tvm.IRModule(), self.values), {})

    @contextmanager
    def function(self, arguments: Sequence[tuple[tuple[int, ...], str]]) -> Iterator[list[Any]]:
        params = [
            relay.var(f"x{place}", shape=shape, dtype=dtype) for place, (shape, dtype) in enumerate(arguments)
        ]
        yield params
        body = self.results[0] if len(self.results) == 1 else relay.Tuple(self.results)
        mod = tvm.IRModule.from_expr(relay.Function(params, body))
        self.mod = relay.transform.InferType()(mod)

    def finish(self, results: Sequence[Any]) -> None:
        self.results = list(results)

    def const(self, value: Any, dtype: str) -> relay.Expr:
        return ops.const(value, dtype)

    def inspect(self, expr: relay.Expr) -> Made:
        typed = relay.transform.InferTypeLocal(expr)
        shape = tuple(int(extent) for extent in typed.concrete_shape)
        name = expr.op.name.removeprefix("nn.")
        return Made(expr, _RELAX_NAMES.get(name, name), shape, typed.dtype)

    def evaluate(self, call: relay.Call) -> Bound:
        # Only bound expressions keep a value: others are never requested again.
        known = self.frame.values
        return Frame(self.frame.owner, dict(known)).expr(call)

    def bind(self, call: relay.Call, bound: Bound) -> relay.Expr:
        self.frame.values[call] = bound
        return call

    def set_value(self, var: relay.Var, bound: Bound) -> None:
        self.frame.values[var] = bound
