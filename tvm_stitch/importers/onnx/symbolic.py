# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on shapes at import time: nodes whose inputs are constants, shapes and symbolic integers.

Exporters compute shapes by operators. Such a node is evaluated here, on arrays whose elements are ints and symbolic
expressions. TVM's converters take only few of these nodes, and compare symbols as if different ones were never equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import relax, tirx

from ...compat import Analyzer
from ...support.failures import reraise_fatal
from .converters.node import constant_of, dim

_MOST_ELEMENTS = 4096
"""Most elements of constants that are evaluated at import. Larger ones are weights, which the compiler folds."""
_EVALUATED = frozenset(
    "Abs Add And Cast CastLike Ceil Concat ConstantOfShape CumSum Div Equal Expand Flatten Floor Gather GatherElements"
    " GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not Or Pow Range Reciprocal"
    " ReduceMax ReduceMin ReduceProd ReduceSum Reshape ScatterElements ScatterND Shape Size Slice Sqrt Squeeze Sub Tile"
    " Transpose Unsqueeze Where Xor".split()
)
"""Operators that are evaluated if all their inputs are small constants."""


def evaluated(
    node: onnx.NodeProto, version: int, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Any:
    """Return the result of a node that depends only on constants and shapes, or None.

    Args:
        node: a node of ONNX's own domain.
        version: the version of the operator set.
        inputs: expressions, or None for omitted inputs.
        attributes: the node's attributes, with defaults.

    Returns:
        A constant, a shape or a symbolic integer, or None for nodes that have to be converted.
    """
    if node.op_type == "Shape":
        return _shape(inputs[0], attributes)
    if node.op_type == "Size" and (dims := _dims(inputs[0])) is not None:
        return _expression(np.array(_product(dims), object))
    if len(node.output) != 1 or not inputs:
        return None
    if node.op_type in _EVALUATED:
        constants = [constant_of(value) if value is not None else None for value in inputs]
        if all(c is not None or value is None for c, value in zip(constants, inputs)):
            return _constant(node, version, constants)
    if node.op_type not in _SYMBOLIC or not any(is_symbolic(value) for value in inputs):
        return None
    arrays = [_array(value) if value is not None else None for value in inputs]
    if any(a is None and value is not None for a, value in zip(arrays, inputs)):
        return None
    result = _SYMBOLIC[node.op_type](arrays, attributes)
    return (
        None if result is None else _expression(result if isinstance(result, np.ndarray) else _scalar(result))
    )


def symbolic_range(inputs: Sequence[Any]) -> Any:
    """Return the numbers of a ``Range`` of step 1 whose extent is an expression of symbols, or None.

    TVM's converter computes the extent at run time, and gives it a new symbol.

    Args:
        inputs: expressions of start, limit and delta, of int64.
    """
    if not any(map(is_symbolic, inputs)):
        return None
    arrays = [_array(value) for value in inputs]
    if any(array is None or array.size != 1 for array in arrays):
        return None
    start, limit, delta = (array.item() for array in arrays if array is not None)
    if delta != 1 or not _is_extent(Analyzer().simplify(tirx.const(0, "int64") + limit - start)):
        return None
    return relax.op.arange(start, limit, 1, "int64")


def _is_extent(value: Any) -> bool:
    """Return whether an expression of extents is never negative: no operation makes a negative number of sizes."""
    if isinstance(value, (int, tirx.IntImm)):
        return int(value) >= 0
    if isinstance(value, (tirx.Add, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.Min)):
        return _is_extent(value.a) and _is_extent(value.b)
    if isinstance(value, tirx.FloorMod):
        return _is_extent(value.b)
    if isinstance(value, tirx.Max):
        return _is_extent(value.a) or _is_extent(value.b)
    return isinstance(value, tirx.Var)


def is_symbolic(value: Any) -> bool:
    """Return whether a value is a shape or a symbolic integer."""
    if isinstance(value, relax.ShapeExpr):
        return True
    return bool(tvm.ir.is_prim_expr(value))


def _shape(value: Any, attributes: Mapping[str, Any]) -> Any:
    if isinstance(value, relax.ShapeExpr):
        dims: list[Any] | None = [len(value.values)]
    else:
        dims = _dims(value)
    if dims is None:
        return None
    end = attributes.get("end")
    return _expression(np.array([*dims[attributes.get("start", 0) : end], None], object)[:-1])


def _dims(value: Any) -> list[Any] | None:
    """Return the dimensions of a tensor if they are known."""
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        return None
    if isinstance(value.ty.shape, relax.ShapeExpr):
        return [dim(d) for d in value.ty.shape.values]
    return [] if value.ty.ndim == 0 else None


def _constant(node: onnx.NodeProto, version: int, values: list[Any]) -> Any:
    """Return the value of a node with small constants as inputs, by ONNX's reference implementation."""
    if sum(v.size for v in values if v is not None) > _MOST_ELEMENTS or _grows(node.op_type, values):
        return None
    if node.op_type in ("Div", "Mod") and not np.all(values[1]):
        return None
    if node.op_type == "Div" and values[0].dtype.kind in "iu":
        return _expression(
            _quotient(values[0].astype(object), values[1].astype(object)), str(values[0].dtype)
        )
    names = [f"i{i}" if v is not None else "" for i, v in enumerate(values)]
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:], alone.output[:]
    alone.input.extend(names)
    alone.output.append("y")
    given = {name: v for name, v in zip(names, values) if name}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given.items()
    ]
    graph = helper.make_graph([alone], "constant", infos, [onnx.ValueInfoProto(name="y")])
    try:
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
        (result,) = ReferenceEvaluator(model).run(None, given)
    except Exception as error:  # a type that the reference implementation does not take
        reraise_fatal(error)
        return None
    result = np.asarray(result)
    return relax.const(result, str(result.dtype)) if result.dtype.kind in "biuf" else None


def _grows(op: str, values: list[Any]) -> bool:
    """Return whether a node makes more elements than are evaluated at import."""
    with np.errstate(all="ignore"):
        if op in ("ConstantOfShape", "Expand"):
            return float(np.prod(np.abs(values[-1].astype("float64")))) > _MOST_ELEMENTS
        if op == "Range":
            span = (float(values[1]) - float(values[0])) / (float(values[2]) or 1.0)
            return not abs(span) < _MOST_ELEMENTS
        if op == "Tile":
            return values[0].size * float(np.prod(values[1].astype("float64"))) > _MOST_ELEMENTS
    return False


def _array(value: Any) -> np.ndarray | None:
    """Return a constant of integers, a shape or a symbolic integer as an array of objects, or None."""
    if isinstance(value, relax.ShapeExpr):
        return np.array([*(dim(d) for d in value.values), None], object)[:-1]
    if is_symbolic(value):
        return _scalar(dim(value))
    constant = constant_of(value)
    if constant is None or constant.dtype.kind not in "biu" or constant.size > _MOST_ELEMENTS:
        return None
    return constant.astype(object)


def _scalar(value: Any) -> np.ndarray:
    """Return an array of one element, without dimensions. NumPy would take an expression for a sequence."""
    array = np.empty((), object)
    array[()] = value
    return array


def _expression(array: np.ndarray, dtype: str = "int64") -> Any:
    """Return an array of ints and symbolic expressions as a constant, a shape or a symbolic integer."""
    flat = list(array.reshape(-1))
    if all(isinstance(v, (int, bool, np.integer, np.bool_)) for v in flat):
        kind = "bool" if flat and all(isinstance(v, (bool, np.bool_)) for v in flat) else dtype
        return relax.const(array.astype(kind), kind)
    if array.ndim > 1 or any(isinstance(v, (bool, np.bool_)) for v in flat):
        return None
    return relax.ShapeExpr(flat) if array.ndim == 1 else _integer(flat[0])


def _integer(value: Any) -> Any:
    return tirx.Cast("int64", value) if str(value.ty.dtype) != "int64" else value


def _product(dims: Sequence[Any]) -> Any:
    result: Any = 1
    for each in dims:
        result = result * each
    return result


def _apply(function: Callable[[Any, Any], Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a function of the elements of two arrays, which are broadcast."""
    a, b = np.broadcast_arrays(a, b)
    result = np.empty(a.shape, object)
    for index in np.ndindex(a.shape):
        result[index] = dim(function(a[index], b[index]))
    return result


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return quotients towards zero. Sizes are not negative, so symbolic ones are rounded down."""

    def divided(x: Any, y: Any) -> Any:
        if isinstance(x, int) and isinstance(y, int):
            return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return tirx.truncdiv(x, y)

    return _apply(divided, a, b)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[list[Any], Mapping[str, Any]], Any]:
    return lambda arrays, _: _apply(function, *arrays)


def _equal(arrays: list[Any], _: Mapping[str, Any]) -> Any:
    """Return which elements are equal, or None if that depends on the sizes at run time."""
    analyzer = Analyzer()

    def compared(x: Any, y: Any) -> Any:
        if isinstance(x, int) and isinstance(y, int):
            return x == y
        if any(isinstance(a, int) and a < 0 and _is_extent(b) for a, b in ((x, y), (y, x))):
            return False
        return True if analyzer.can_prove_equal(x, y) else None

    result = _apply(compared, *arrays)
    return None if any(v is None for v in result.reshape(-1)) else result


def _where(arrays: list[Any], _: Mapping[str, Any]) -> Any:
    condition, x, y = np.broadcast_arrays(*arrays)
    if not all(isinstance(v, (int, bool)) for v in condition.reshape(-1)):
        return None
    return np.where(condition.astype(bool), x, y)


def _gather(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    data, indices = arrays
    if not all(isinstance(i, int) and -len(data) <= i < len(data) for i in indices.reshape(-1)):
        return None
    return np.take(data, indices.astype("int64"), axis=attributes["axis"])


def _slice(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    data = arrays[0]
    if len(arrays) == 1:
        bounds = [attributes["starts"], attributes["ends"], attributes.get("axes", [0]), [1]]
    else:
        bounds = [list(a) if a is not None else None for a in arrays[1:]]
        bounds += [None] * (4 - len(bounds))
    starts, ends, axes, steps = bounds[0], bounds[1], bounds[2] or [0], bounds[3] or [1]
    if data.ndim != 1 or len(starts) != 1 or axes[0] not in (0, -1):
        return None
    if not all(isinstance(v, int) for v in (starts[0], ends[0], steps[0])):
        return None
    return data[starts[0] : ends[0] : steps[0]]


def _concat(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    return np.concatenate(arrays, axis=attributes["axis"])


def _unsqueeze(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    axes = list(arrays[1]) if len(arrays) > 1 else attributes["axes"]
    return np.expand_dims(arrays[0], tuple(int(a) for a in axes))


def _squeeze(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    axes = list(arrays[1]) if len(arrays) > 1 and arrays[1] is not None else attributes.get("axes")
    return np.squeeze(arrays[0], tuple(int(a) for a in axes) if axes is not None else None)


def _reshape(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    shape = list(arrays[1]) if len(arrays) > 1 else attributes["shape"]
    if not all(isinstance(d, int) and d != 0 for d in shape):
        return None
    return np.reshape(arrays[0], [int(d) for d in shape])


def _cast(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    return arrays[0] if attributes["to"] in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) else None


def _reduction(function: Callable[[Any, Any], Any]) -> Callable[[list[Any], Mapping[str, Any]], Any]:
    """Return a reduction of an array of one dimension by a function of two numbers."""

    def reduced(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
        data, axes = arrays[0], arrays[1] if len(arrays) > 1 else attributes.get("axes")
        if axes is None and attributes.get("noop_with_empty_axes"):
            return data
        if data.ndim != 1 or not data.size or (axes is not None and not len(axes)):
            return None
        result = np.empty((1,) if attributes["keepdims"] else (), object)
        result.fill(dim(reduce(function, list(data))))
        return result

    return reduced


def _least(x: Any, y: Any) -> Any:
    return min(x, y) if isinstance(x, int) and isinstance(y, int) else tirx.min(x, y)


def _greatest(x: Any, y: Any) -> Any:
    return max(x, y) if isinstance(x, int) and isinstance(y, int) else tirx.max(x, y)


def _mod(arrays: list[Any], attributes: Mapping[str, Any]) -> Any:
    """Return remainders by positive numbers. With ``fmod`` these are others for dividends that may be negative."""
    if not all(isinstance(v, int) and v > 0 for v in arrays[1].reshape(-1)):
        return None
    if attributes.get("fmod", 0) and not all(map(_is_extent, arrays[0].reshape(-1))):
        return None
    return _apply(_remainder, *arrays)


def _remainder(x: Any, y: int) -> Any:
    """Return ``x`` modulo a positive number, rounded down.

    Models fill sizes up to a multiple by ``-n % 4``. It is written as ``(n + 3) // 4 * 4 - n``, since TVM makes
    ``n % -4`` of sums with it.
    """
    if isinstance(x, int):
        return x % y
    behind = Analyzer().simplify(tirx.const(y, "int64") - x)
    if _is_extent(x) or not _is_extent(behind):
        return tirx.floormod(x, y)
    return Analyzer().simplify(tirx.floordiv(behind - 1, y) * y + x)


def _expand(arrays: list[Any], _: Mapping[str, Any]) -> Any:
    data, shape = arrays
    if not all(isinstance(d, int) for d in shape) or np.prod(shape, dtype="float64") > _MOST_ELEMENTS:
        return None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape)))


def _tile(arrays: list[Any], _: Mapping[str, Any]) -> Any:
    data, repeats = arrays
    if (
        not all(isinstance(r, int) for r in repeats)
        or data.size * np.prod(repeats, dtype="float64") > _MOST_ELEMENTS
    ):
        return None
    return np.tile(data, [int(r) for r in repeats])


_SYMBOLIC: dict[str, Callable[[list[Any], Mapping[str, Any]], Any]] = {
    "Add": _binary(lambda x, y: x + y),
    "Cast": _cast,
    "Concat": _concat,
    "Div": lambda arrays, _: _quotient(*arrays),
    "Equal": _equal,
    "Gather": _gather,
    "Identity": lambda arrays, _: arrays[0],
    "Expand": _expand,
    "Max": _binary(_greatest),
    "Min": _binary(_least),
    "Mod": _mod,
    "Mul": _binary(lambda x, y: x * y),
    "Neg": lambda arrays, _: _apply(lambda x, y: y - x, arrays[0], _scalar(0)),
    "ReduceMax": _reduction(_greatest),
    "ReduceMin": _reduction(_least),
    "ReduceProd": _reduction(lambda x, y: x * y),
    "ReduceSum": _reduction(lambda x, y: x + y),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _binary(lambda x, y: x - y),
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
