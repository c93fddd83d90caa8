# SPDX-License-Identifier: Apache-2.0
"""Evaluate a StitchGraph in NumPy, operator by operator, to check rewrites of graphs.

There are two precisions. In *exact* precision floats are float64, and only casts to a float dtype round. In *working*
precision every value is held in its :func:`~tvm_stitch.graph.dtype.compute_dtype` (float32 for the half types). Casts
and outputs round it to its own dtype, as in the kernels. Sums add one element after the other, the least favourable
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

from tvm_stitch import compat
from tvm_stitch.compat import Buffer, Expr, Var
from tvm_stitch.graph.dtype import compute_dtype
from tvm_stitch.graph.extent import Extent
from tvm_stitch.graph.ir import Operator, StitchGraph, Tensor

from .operators import erf, truncated_divide


def evaluate_graph(graph: StitchGraph, inputs: Sequence[np.ndarray], exact: bool = True) -> list[np.ndarray]:
    """Compute the graph's outputs on ``inputs``.

    There is one array for each input, of its shape and dtype. Extents are static.

    Returns arrays of float64 for float dtypes when ``exact``, else of each output's own dtype.

    Raises
    ------
    NotImplementedError : for a symbolic extent or an expression without a rule.
    ValueError : for inputs of other shapes than the graph's.
    """
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
    values: dict[Tensor, np.ndarray] = {}
    for tensor, array in zip(graph.inputs, inputs):
        if array.shape != _static(tensor.shape):
            raise ValueError(f"{tensor!r} is given an array of shape {array.shape}")
        values[tensor] = array.astype(_held(tensor.dtype, exact))
    for op in graph.operators:
        values[op.output] = _Evaluation(op, values, exact).run()
    results = [values[t] for t in graph.outputs]
    if exact:
        return results
    with np.errstate(over="ignore"):
        return [v.astype(np.dtype(t.dtype)) for v, t in zip(results, graph.outputs)]


def _static(extents: Sequence[Extent]) -> tuple[int, ...]:
    if not all(isinstance(e, int) for e in extents):
        raise NotImplementedError(f"a symbolic extent among {', '.join(map(str, extents))}")
    return tuple(int(e) for e in extents)


def _held(dtype: str, exact: bool) -> np.dtype:
    """Return the dtype that holds values of ``dtype``."""
    if dtype.startswith(("float", "bfloat")):
        return np.dtype("float64" if exact else compute_dtype(dtype))
    return np.dtype(dtype)


class _Evaluation:
    """One operator over its whole iteration space. Every axis is a dimension of the arrays."""

    def __init__(self, op: Operator, values: dict[Tensor, np.ndarray], exact: bool):
        self.op, self.exact = op, exact
        self.buffers: dict[Buffer, np.ndarray] = {b: values[t] for b, t in op.operand.items()}
        self.shape = _static(op.extents)
        self.axes: dict[Var, np.ndarray] = {}
        for i, axis in enumerate(op.axes):
            dims = [1] * len(self.shape)
            dims[i] = self.shape[i]
            self.axes[axis.var] = np.arange(self.shape[i]).reshape(dims)

    def run(self) -> np.ndarray:
        op = self.op
        held = _held(op.output.dtype, self.exact)
        with np.errstate(all="ignore"):
            value = np.broadcast_to(np.asarray(self._visit(op.value)), self.shape).astype(held)
            if op.is_reduce:
                value = self._reduce(value.reshape(*self.shape[: len(op.spatial)], -1))
        return value.reshape(_static(op.output.shape))

    def _reduce(self, value: np.ndarray) -> np.ndarray:
        assert self.op.combiner is not None and self.op.identity is not None
        combine = _COMBINERS[self.op.combiner]
        result = np.full(value.shape[:-1], self._visit(self.op.identity), value.dtype)
        if self.exact and self.op.combiner == "sum":
            return np.asarray(result + value.sum(-1), value.dtype)
        for i in range(value.shape[-1]):
            result = combine(result, value[..., i])
        return np.asarray(result, value.dtype)

    def _visit(self, e: Expr) -> Any:
        name = compat.kind(e)
        if compat.is_load(e):
            return self._load(e)
        if name in ("Var", "SizeVar"):
            if e not in self.axes:
                raise NotImplementedError(f"{self.op.name} mentions {e}, whose value is not known")
            return self.axes[e]
        if name in ("IntImm", "FloatImm"):
            return np.asarray(e.value).astype(_held(compat.dtype_of(e), self.exact))
        if name == "Cast":
            return self._cast(self._visit(e.value), compat.dtype_of(e))
        if name in _BINARY:
            value = _BINARY[name](self._visit(e.a), self._visit(e.b))
            return np.asarray(value).astype(_held(compat.dtype_of(e), self.exact))
        if name == "Not":
            return np.logical_not(self._visit(e.a))
        if name == "Select":
            return np.where(self._visit(e.condition), self._visit(e.true_value), self._visit(e.false_value))
        if name == "Call":
            args = [self._visit(a) for a in e.args]
            if compat.call_name(e) == "if_then_else":
                return np.where(*args)
            if compat.call_name(e) in _CALLS:
                value = _CALLS[compat.call_name(e)](*args)
                return np.asarray(value).astype(_held(compat.dtype_of(e), self.exact))
            raise NotImplementedError(f"call of {compat.call_name(e)}")
        raise NotImplementedError(f"scalar expression of kind {name}")

    def _load(self, e: Expr) -> np.ndarray:
        """Read elements, the nearest ones for positions outside of the tensor. A condition discards those."""
        array = self.buffers[compat.load_buffer(e)]
        if not array.ndim:
            return array
        indices = [np.clip(self._visit(i), 0, max(size - 1, 0)) for i, size in zip(e.indices, array.shape)]
        return array[tuple(np.broadcast_arrays(*indices))]

    def _cast(self, value: Any, dtype: str) -> np.ndarray:
        if dtype == "bool":
            return np.asarray(value) != 0
        return np.asarray(value).astype(np.dtype(dtype)).astype(_held(dtype, self.exact))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": truncated_divide, "Mod": np.fmod,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "Min": np.minimum, "Max": np.maximum, "EQ": np.equal,
    "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or,
}  # fmt: skip

_COMBINERS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "all": np.logical_and,
    "any": np.logical_or,
}  # fmt: skip

_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power,
    "tanh": np.tanh, "erf": erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "fabs": np.abs, "floor": np.floor,
    "ceil": np.ceil, "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip
