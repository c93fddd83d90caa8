# SPDX-License-Identifier: Apache-2.0
"""Relax modules of the named workloads, which are written in the operators of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from .specs import Body, Spec


class RelaxOps:
    """``tvm.relax.op`` with every call bound to a variable by ``emit``."""

    def __init__(self, emit: Callable[[relax.Expr], relax.Var]) -> None:
        self.emit = emit

    def __getattr__(self, name: str) -> Callable[..., relax.Var]:
        operator = getattr(R, name)
        return lambda *args, **kwargs: self.emit(operator(*args, **kwargs))

    def const(self, value: float, dtype: str) -> relax.Constant:
        """Return a scalar constant."""
        return relax.const(value, dtype)

    def shape_of(self, x: relax.Expr) -> tuple[Any, ...]:
        """Return the extents of a tensor."""
        return tuple(x.ty.shape.values)

    def parts(self, value: relax.Expr, count: int) -> list[relax.Var]:
        """Return the first ``count`` tensors of a tuple."""
        return [self.emit(relax.TupleGetItem(value, place)) for place in range(count)]

    def log_softmax(self, x: relax.Expr, axis: int = -1) -> relax.Var:
        """Emit Relax's own log-softmax."""
        return self.emit(R.nn.log_softmax(x, axis=axis))

    def nll_loss(self, predictions: relax.Expr, targets: relax.Expr, reduction: str = "mean") -> relax.Var:
        """Emit Relax's own negative log-likelihood."""
        return self.emit(R.nn.nll_loss(predictions, targets, reduction=reduction))

    def batch_norm_training(self, *args: relax.Expr, **attrs: Any) -> relax.Var:
        """Emit Relax's own batch norm, by the batch's statistics. It returns a tuple of three."""
        return self.emit(R.nn.batch_norm(*args, training=True, **attrs))


def build(
    specs: Sequence[Spec], body: Body, symbolic: str | None = None, sizes: Mapping[str, int] | None = None
) -> tvm.IRModule:
    """Build the module whose ``main`` is ``body``. The leading extent ``sizes[symbolic]``, if named, is a variable."""
    extent = (sizes or {})[symbolic] if symbolic else None
    variable = tirx.Var(symbolic, "int64") if symbolic else None

    def shape_of(spec: Spec) -> list[object]:
        # One-dimensional arguments are scales and offsets, which never have the symbolic extent.
        is_symbolic = len(spec.shape) > 1 and spec.shape[0] == extent
        first = [variable if is_symbolic else spec.shape[0]] if spec.shape else []
        return [*first, *spec.shape[1:]]

    builder = relax.BlockBuilder()
    params = [relax.Var(spec.name, relax.TensorType(shape_of(spec), spec.dtype)) for spec in specs]
    with builder.function("main", params):
        with builder.dataflow():
            values = body(RelaxOps(builder.emit), *params)
            outputs = [builder.emit_output(value) for value in values]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()
