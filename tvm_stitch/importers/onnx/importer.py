# SPDX-License-Identifier: Apache-2.0
"""TVM's graph importer with the converters of this package in place of some of its own.

A node whose operator is in :data:`converters.CONVERSIONS` is converted by this package. TVM's class converts other
nodes. Dimensions with a name become symbols. A name such as ``past_len + 1`` is arithmetic if ``past_len`` is one, too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from ...relax.report.named_spans import named_call
from ...support.failures import error_text, fault_at, reraise_fatal
from .converters import CONVERSIONS
from .converters.node import Attributes, Node, Unsupported, as_tensor, dtype_of, shape_of
from .dimensions import arithmetic, check_broadcast
from .honoured.check import UnsupportedModel, where
from .schema import attributes_of, domain_of, schema_of
from .symbolic import evaluated, symbolic_range

_TAKE_SHAPES = frozenset(
    "Reshape Resize ConstantOfShape Gather Slice Shape Expand Concat Equal Where Cast CastLike Squeeze"
    " Unsqueeze Add Sub Mul Div Identity".split()
)
"""TVM's converters that take shapes and symbolic integers as well as tensors."""
_NARROW = {"int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8"}
"""Bytes that hold integers of fewer bits."""
_RETURN_TUPLES = frozenset(
    "Optional OptionalGetElement SequenceConstruct SequenceEmpty SequenceErase SequenceInsert"
    " ConcatFromSequence SplitToSequence".split()
)
"""TVM's converters whose one result is a tuple."""
_INTERNAL = re.compile(
    r"object has no attribute|ir\.Op\(|Literal value|BlockBuilder|span=|not subscriptable|unexpected keyword"
    r"|InternalError|Check failed|must be (an? )?(instance|str|int)|Mismatched type|\bNoneType\b"
)
"""Texts of TVM's errors that say nothing to a user."""


class Importer(onnx_frontend.ONNXGraphImporter):
    """Converts a graph into a Relax function ``main``.

    Args:
        shapes: shapes of inputs, to fix symbolic dimensions.
        versions: the version of each operator set, by domain.
        names: whether calls get the names of their nodes, in their spans.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], versions: Mapping[str, int], names: bool = False):
        super().__init__({name: list(shape) for name, shape in shapes.items()}, "float32")
        self.versions, self.names = dict(versions), names
        self.emitted: dict[str, str] = {}
        self.opset = self.versions.get("", 1)
        self._results: set[str] = set()
        self._optionals: set[str] = set()
        self._narrow: dict[str, str] = {}
        self._symbols: dict[str, tirx.Var] = {}
        self._plain: dict[str, Any] = {}
        self._taken: set[str] = set()

    def is_output(self, name: str) -> bool:
        """Return whether a value is a result of the model."""
        return name in self._results

    def forget(self) -> None:
        """Drop what has been converted, after an error."""
        self.bb = relax.BlockBuilder()
        self._nodes.clear()
        self._inputs.clear()

    def imported(self, graph: onnx.GraphProto) -> tvm.IRModule:
        """Return a module with the graph as its function ``main``."""
        self._results = {value.name for value in graph.output}
        self._parse_graph_initializers(graph)
        self._parse_graph_input(graph)
        params = [value for value in self._inputs.values() if isinstance(value, relax.Var)]
        control = _has_control(graph)
        with self.bb.function("main", params=params):
            with contextlib.nullcontext() if control else self.bb.dataflow():
                outputs = [
                    self._result(value, out.name)
                    for value, out in zip(self.convert_nodes(graph), graph.output)
                ]
                result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
                result = result if control else self.bb.emit_output(result)
            self.bb.emit_func_output(result)
        mod = self.bb.get()
        mod["main"] = mod["main"].with_attrs({"num_input": self._num_input})
        return mod

    def convert_graph(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
        """Convert the graph of an attribute into the current block, and return its outputs.

        The graph sees the values of enclosing graphs. Values that it defines are forgotten afterwards.

        Args:
            graph: the body.
            inputs: expressions for the inputs of the body, in order.
        """
        outer = dict(self._nodes)
        try:
            self._parse_graph_initializers(graph)
            self._nodes.update({value.name: given for value, given in zip(graph.input, inputs, strict=True)})
            return self.convert_nodes(graph)
        finally:
            self._nodes.clear()
            self._nodes.update(outer)

    def convert_nodes(self, graph: onnx.GraphProto) -> list[Any]:
        """Convert the nodes of a graph in order, and return the values of its outputs."""
        for number, node in enumerate(graph.node):
            try:
                self._convert(node)
            except UnsupportedModel:
                raise
            except Exception as error:
                reraise_fatal(error)
                if fault_at(error) is not None:  # a programming error of this package
                    raise
                raise UnsupportedModel(
                    f"{where(number, node, self.version(node))}: {self._reason(error, node)}"
                ) from None
        return [self._nodes[value.name] for value in graph.output]

    def constant(self, array: np.ndarray) -> relax.Expr:
        """Return a constant. TVM has no arrays of 2-bit and 4-bit integers: they become bytes."""
        kind = str(array.dtype)
        if kind in _NARROW:
            array = array.astype(_NARROW[kind])
        return relax.const(tvm.runtime.tensor(np.array(array, order="C")))

    def narrow(self, name: str) -> str | None:
        """Return the type of a constant that has become bytes, ``int4`` for example, or None for other values."""
        return self._narrow.get(name)

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._nodes[tensor.name] = self._tensor(tensor.name, tensor)

    def _tensor(self, name: str, tensor: onnx.TensorProto) -> relax.Expr:
        array = numpy_helper.to_array(tensor)
        if str(array.dtype) in _NARROW:
            self._narrow[name] = str(array.dtype)
        return self.constant(array)

    def version(self, node: onnx.NodeProto) -> int:
        """Return the version of the operator set of a node's domain."""
        return self.versions.get(domain_of(node), 1)

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        for value in graph.input:  # names that are arithmetic need the plain ones
            dims = [] if value.name in self._nodes else list(value.type.tensor_type.shape.dim)
            fixed = self._shape.get(value.name)
            for at, dim in enumerate(dims):
                if dim.dim_param.isidentifier():
                    self._plain[dim.dim_param] = self._extent(dim) if fixed is None else fixed[at]
        for value in graph.input:
            if value.name not in self._nodes:
                self._num_input += 1
                self._input_names.append(value.name)
                kinds = value.type  # an optional tensor has to be given
                if kinds.HasField("optional_type"):
                    self._optionals.add(value.name)
                    kinds = kinds.optional_type.elem_type
                if not kinds.HasField("tensor_type"):
                    kind = (kinds.WhichOneof("value") or "unknown").removesuffix("_type")
                    raise UnsupportedModel(
                        f"the input {value.name!r} is a value of type {kind}; TVM takes tensors"
                    )
                tensor = kinds.tensor_type
                shape = self._shape.get(value.name)
                if shape is None:
                    if not tensor.HasField("shape"):
                        raise UnsupportedModel(
                            f"the input {value.name!r} has no shape; give one (shape_dict, or --shape)"
                        )
                    shape = [self._extent(d) for d in tensor.shape.dim]
                dtype = onnx_frontend.get_type(tensor.elem_type)
                if dtype in _NARROW or dtype == "object":
                    raise UnsupportedModel(
                        f"the input {value.name!r} is of {dtype}; TVM takes no such tensors"
                    )
                self._nodes[value.name] = self._new_var(self._sanitize_name(value.name), shape, dtype)
            self._inputs[value.name] = self._nodes[value.name]

    def _result(self, value: Any, name: str) -> relax.Expr:
        """Return an output of the model: a tensor, or a sequence as a tuple."""
        if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TupleType):
            return value
        try:
            return as_tensor(self.bb, value)
        except Unsupported:
            raise UnsupportedModel(f"the output {name!r} is no tensor; export the model without it") from None

    def _extent(self, dim: onnx.TensorShapeProto.Dimension) -> Any:
        """Return an extent, an int or a symbol. Equal names are one symbol. Dimensions without name differ."""
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        name = dim.dim_param
        if name and name != "?" and name in self._symbols:
            return self._symbols[name]
        if name and not name.isidentifier() and (extent := arithmetic(name, self._plain)) is not None:
            return extent
        start = re.sub(r"\W", "_", name.strip(), flags=re.ASCII) or "d"
        start = start if not start[0].isdigit() else f"d{start}"
        chosen, count = start, 1
        while chosen in self._taken:
            chosen, count = f"{start}_{count}", count + 1
        self._taken.add(chosen)
        symbol = tirx.Var(chosen, "int64")
        if name:
            self._symbols[name] = symbol
        return symbol

    def _convert(self, node: onnx.NodeProto) -> None:
        version = self.version(node)
        inputs = [self._nodes[name] if name else None for name in node.input]
        conversion = CONVERSIONS.get((domain_of(node), node.op_type))
        attributes = attributes_of(node, version, conversion.defaults if conversion is not None else {})
        value = evaluated(node, version, inputs, attributes) if not domain_of(node) else None
        results: tuple[Any, ...]
        if value is None and node.op_type == "Range" and not domain_of(node):
            value = symbolic_range(inputs)
            value = None if value is None else self.bb.emit(value)
        if value is not None:
            results = (value,)
        elif conversion is None:
            results = self._by_tvm(node, inputs)
        else:
            outputs = tuple(node.output)
            result = conversion.convert(
                Node(node, version, Attributes(attributes), tuple(inputs), outputs, self.bb, self)
            )
            results = result if isinstance(result, tuple) and not conversion.sequence else (result,)
            results = tuple(self._bound(value, conversion.control) for value in results)
        if node.op_type == "Constant" and (
            tensor := next((a.t for a in node.attribute if a.HasField("t")), None)
        ):
            self._narrow |= {node.output[0]: t} if (t := _narrow_type(tensor)) else {}
        name = node.name or next((o for o in node.output if o), "")
        for position, output in enumerate(node.output):
            if not output:
                continue
            value = results[position] if position < len(results) else None
            if value is None:
                raise Unsupported(f"no converter makes its output {position} ({output!r})")
            self._check_type(node, version, position, value)
            check_broadcast(node.op_type, inputs, value)
            self._nodes[output] = self._named(value, name) if self.names else value

    def _check_type(self, node: onnx.NodeProto, version: int, position: int, value: Any) -> None:
        """Raise an error if an output has another type than the inputs that share its type in the schema."""
        schema = schema_of(domain_of(node), node.op_type, version)
        if schema is None or position >= len(schema.outputs) or any(map(self.narrow, node.input)):
            return
        for name, formal in zip(node.input, schema.inputs):
            if formal.type_str != schema.outputs[position].type_str:
                continue
            wanted, found = (_element_type(each) for each in (self._nodes.get(name), value))
            if wanted is not None and found is not None and found != wanted:
                raise Unsupported(f"its converter returns {found} instead of {wanted}")

    def _bound(self, value: Any, control: bool) -> Any:
        """Return a converter's result as a variable, except for shapes and symbolic integers."""
        if (
            value is None
            or not isinstance(value, relax.Expr)
            or isinstance(value, (tvm.ir.GenericConst, relax.ShapeExpr))
        ):
            return value
        if isinstance(value, (relax.Var, relax.Tuple)) or tvm.ir.is_prim_expr(value):
            return value
        return self.bb.emit(value)

    def _by_tvm(self, node: onnx.NodeProto, given: list[Any]) -> tuple[Any, ...]:
        """Convert a node by TVM's class."""
        computed = any(_element_type(value) and not isinstance(value, tvm.ir.GenericConst) for value in given)
        if node.op_type not in _TAKE_SHAPES or (node.op_type == "Where" and computed):
            given = [
                value if value is None or not _is_shape(value) else as_tensor(self.bb, value)
                for value in given
            ]
        if node.op_type == "OptionalHasElement" and self._optionals.intersection(node.input):
            raise Unsupported(
                "it asks for an input of the model that may be missing, and TVM takes all inputs"
            )
        attributes = self._parse_attr(node.attribute)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        result = self._convert_operator(
            node.op_type, onnx_frontend.onnx_input(given), attributes, self.version(node)
        )
        if node.op_type in _RETURN_TUPLES or not isinstance(result, relax.Expr):
            return (result,)
        if isinstance(result, relax.Tuple):
            return tuple(result.fields)
        if isinstance(result.ty, relax.TupleType):
            return tuple(self.bb.emit(relax.TupleGetItem(result, i)) for i in range(len(result.ty.fields)))
        return (self._without_negative(result),)

    def _without_negative(self, result: relax.Expr) -> relax.Expr:
        """Return nothing instead of a slice that ends before it begins. TVM gives it a negative extent."""
        if not isinstance(result, relax.Call) or result.op.name != "relax.strided_slice":
            return result
        dims = shape_of(result)
        if not any(isinstance(d, int) and d < 0 for d in dims):
            return result
        shape = relax.ShapeExpr([max(0, d) if isinstance(d, int) else d for d in dims])
        return self.bb.emit(relax.op.full(shape, relax.const(0, dtype_of(result)), dtype_of(result)))

    def _named(self, value: Any, name: str) -> Any:
        """Return a value with the node's name in the span of its call. The last call of a node has the name."""
        if isinstance(value, relax.Var):
            self.emitted.setdefault(str(value.name), name)
        if not isinstance(value, relax.Call) or not name:
            return value
        return self.bb.normalize(named_call(value, name))

    def _reason(self, error: Exception, node: onnx.NodeProto) -> str:
        text = error_text(error)
        if isinstance(error, Unsupported):
            return text
        if not _INTERNAL.search(text) and not isinstance(
            error, (AttributeError, TypeError, KeyError, AssertionError)
        ):
            return text
        given = ", ".join(f"{name} {_described(self._nodes.get(name))}" for name in node.input if name)
        return (
            f"TVM does not take it with these inputs: {given}; constant inputs and fixed dimensions may help"
        )


def _narrow_type(tensor: onnx.TensorProto) -> str | None:
    kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return kind if kind in _NARROW else None


def _has_control(graph: onnx.GraphProto) -> bool:
    """Return whether a node of a graph, or of a graph inside it, needs control flow."""
    for node in graph.node:
        conversion = CONVERSIONS.get((domain_of(node), node.op_type))
        if conversion is not None and conversion.control:
            return True
        if any(_has_control(a.g) for a in node.attribute if a.HasField("g")):
            return True
    return False


def _is_shape(value: Any) -> bool:
    if tvm.ir.is_prim_expr(value) and not isinstance(value, tvm.ir.GenericConst):
        return not isinstance(getattr(value, "ty", None), relax.TensorType)
    return isinstance(value, relax.Expr) and isinstance(value.ty, relax.ShapeType)


def _element_type(value: Any) -> str | None:
    kind = getattr(value, "ty", None)
    return str(kind.dtype.dtype) if isinstance(kind, relax.TensorType) and kind.dtype is not None else None


def _described(value: Any) -> str:
    """Return type and shape of a value for a message."""
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        return "(a shape)" if value is not None and _is_shape(value) else "(no tensor)"
    shape = value.ty.shape
    dims = ",".join(str(d) for d in shape.values) if isinstance(shape, relax.ShapeExpr) else "?"
    return f"{value.ty.dtype}[{dims}]"
