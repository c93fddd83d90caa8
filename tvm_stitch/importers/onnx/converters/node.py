# SPDX-License-Identifier: Apache-2.0
"""A node during its conversion: its attributes with ONNX's defaults, its inputs, and what converters ask of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, tirx

from ....graph.extent import as_plain_text

Result = Any
"""A Relax expression, or a tuple with one for each output. An entry may be None if the node does not use it."""

ANY = "any"
"""Every value of an attribute is honoured."""


class Unsupported(ValueError):
    """A converter does not take a node. The message is the reason, without the node's name."""

    def __init__(self, reason: str):
        """Make the error of a reason. Extents in it are printed as numbers and symbols."""
        super().__init__(as_plain_text(reason))


class Attributes(dict[str, Any]):
    """Attributes of a node. A required one that the node lacks is an error of the model."""

    def __missing__(self, name: str) -> Any:
        raise Unsupported(f"it lacks the attribute {name}")


@dataclass(frozen=True)
class Conversion:
    """A converter, and the attributes that it honours.

    Attributes:
        convert: returns the results of a node.
        attributes: for each attribute the honoured values, or :data:`ANY`. A node with another attribute is refused.
        since: the first version of the operator set that the converter knows.
        defaults: defaults of attributes, for operators without a schema in the onnx package.
        control: whether the converter emits control flow, which no dataflow block may contain.
        sequence: whether the one result is a sequence, which is a tuple in Relax.
    """

    convert: Callable[[Node], Result]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    since: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)
    control: bool = False
    sequence: bool = False


@dataclass(frozen=True)
class Node:
    """A node of an ONNX graph, with Relax expressions as inputs.

    ``attributes`` has strings as ``str``, tensors as NumPy arrays and graphs as protobuf messages. Attributes that the
    node lacks have their default. Those without default are absent. ``outputs`` are the names, with ``""`` for results
    that nobody reads. ``opset`` is the version of the node's domain. ``importer`` converts graphs of attributes.
    """

    proto: onnx.NodeProto
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[str, ...]
    bb: relax.BlockBuilder
    importer: Any

    def has(self, position: int) -> bool:
        """Return whether the node has this input."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def emit(self, value: relax.Expr) -> relax.Var:
        """Bind an expression, and return its variable."""
        return self.bb.emit(value)

    def tensor(self, position: int) -> relax.Expr:
        """Return an input as a tensor. Shapes and symbolic integers become tensors of int64."""
        if not self.has(position):
            raise Unsupported(f"it lacks input {position}")
        return as_tensor(self.bb, self.inputs[position])

    def optional(self, position: int) -> relax.Expr | None:
        """Return an input as a tensor, or None if the node has none."""
        return self.tensor(position) if self.has(position) else None

    def shape(self, position: int) -> list[Any]:
        """Return the dimensions of an input, as ints and symbolic expressions."""
        return shape_of(self.tensor(position))

    def static_shape(self, position: int) -> list[int]:
        """Return the dimensions of an input, which have to be fixed."""
        return self.fixed(position, slice(None))

    def fixed(self, position: int, some: slice) -> list[int]:
        """Return some dimensions of an input, which have to be fixed."""
        dims = self.shape(position)[some]
        if not all(isinstance(d, int) for d in dims):
            raise Unsupported(
                f"input {position} has symbolic dimensions {dims}; fix them (shape_dict, or --shape)"
            )
        return dims

    def dtype(self, position: int) -> str:
        """Return the element type of an input."""
        return dtype_of(self.tensor(position))

    def constant(self, position: int) -> np.ndarray | None:
        """Return the value of an input that is constant, or None."""
        return constant_of(self.inputs[position]) if self.has(position) else None

    def known(self, position: int, name: str) -> np.ndarray:
        """Return the value of an input that has to be constant."""
        value = self.constant(position)
        if value is None:
            raise Unsupported(f"its input {position} ({name}) is no constant; make it an initializer")
        return value

    def ints(self, position: int, name: str) -> list[int]:
        """Return an input that has to be a constant list of integers."""
        return [int(v) for v in self.known(position, name).reshape(-1)]


def as_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """Return an importer's value as a tensor: shapes and symbolic integers become tensors of int64."""
    constant = constant_of(value)
    if constant is not None:
        return value if isinstance(value, tvm.ir.GenericConst) else relax.const(constant, str(constant.dtype))
    if isinstance(value, relax.ShapeExpr):
        return bb.emit(relax.op.shape_to_tensor(value))
    if tvm.ir.is_prim_expr(value):
        shape = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([tirx.Cast("int64", value)])))
        return bb.emit(relax.op.squeeze(shape, [0]))
    if isinstance(value, relax.Expr) and isinstance(value.ty, relax.ShapeType):
        return bb.emit(relax.op.shape_to_tensor(value))
    if isinstance(value, (list, tuple, relax.Tuple)) or isinstance(
        getattr(value, "ty", None), tvm.ir.TupleType
    ):
        raise Unsupported(
            "an input is a sequence of tensors; write the model with a tensor that stacks or joins them instead"
        )
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        raise Unsupported("an input is no tensor")
    return value


def constant_of(value: Any) -> np.ndarray | None:
    """Return the NumPy array of a constant tensor, shape or integer, or None for other values."""
    if isinstance(value, tvm.ir.GenericConst):
        array: np.ndarray = value.value.numpy()
        return array
    if isinstance(value, relax.ShapeExpr):
        dims = [dim(d) for d in value.values]
        return np.array(dims, "int64") if all(isinstance(d, int) for d in dims) else None
    if isinstance(value, tirx.IntImm):
        return np.array(int(value.value), "int64")
    return None


def dim(extent: Any) -> Any:
    """Return an extent as an int if it is fixed."""
    return int(extent) if isinstance(extent, (int, tirx.IntImm)) else extent


def shape_of(value: relax.Expr) -> list[Any]:
    """Return the dimensions of a tensor, as ints and symbolic expressions.

    Raises:
        Unsupported: if they are not known.
    """
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        if shape is not None and isinstance(shape.ty, relax.ShapeType) and shape.ty.values is not None:
            return [dim(d) for d in shape.ty.values]
        if value.ty.ndim == 0:
            return []
        raise Unsupported(
            "the shape of an input is only known at run time; fix symbolic dimensions (shape_dict, or --shape)"
        )
    return [dim(d) for d in shape.values]


def dtype_of(value: relax.Expr) -> str:
    """Return the element type of a tensor."""
    return str(value.ty.dtype)


def positive(axis: int, rank: int) -> int:
    """Return a dimension's number, counted from the first one.

    Raises:
        Unsupported: if there is no such dimension.
    """
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is no dimension of {rank}")
    return axis % rank


def product(dims: Sequence[Any]) -> Any:
    """Return the product of dimensions, fixed or symbolic."""
    return math.prod(dims)


def scalar(value: float, dtype: str) -> tvm.ir.GenericConst:
    """Return a constant of one element, without dimensions."""
    return relax.const(value, dtype)
