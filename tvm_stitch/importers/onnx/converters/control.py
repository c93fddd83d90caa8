# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan: branches and steps become functions that are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from ....relax.loops.branches import UnequalBranches, choice
from ....relax.loops.loop import ChangingState
from ....relax.loops.rows import scalar
from ....relax.loops.scan import host_number, scan
from .node import ANY, Conversion, Node, Unsupported, as_tensor, positive, shape_of

LONGEST = 2**31
"""A trip count that is no bound: exporters write the largest integer for a loop that only its condition ends."""


def _if(node: Node) -> tuple[Any, ...]:
    """(condition) -> the results of one of two graphs."""
    branches = [node.attributes[name] for name in ("then_branch", "else_branch")]
    known = node.constant(0)
    if known is not None:
        taken = branches[0] if known.item() else branches[1]
        return tuple(as_tensor(node.bb, value) for value in node.importer.convert_graph(taken, []))
    captured = _captured(node, branches)

    def emit(graph: onnx.GraphProto) -> Callable[[list[Any]], list[Any]]:
        def emitted(own: list[Any]) -> list[Any]:
            with captured.seen(own):
                return [as_tensor(node.bb, value) for value in node.importer.convert_graph(graph, [])]

        return emitted

    condition = _flag(node, node.tensor(0))
    with _refusals():
        yes, no = map(emit, branches)
        return tuple(choice(node.bb, "if", condition, captured.values, yes, no, captured.sizes))


def _loop(node: Node) -> tuple[Any, ...]:
    """(trip count, condition, states) -> (last states, stacked results of the steps)."""
    body = node.attributes["body"]
    carried = [node.tensor(at) for at in range(2, len(node.inputs))]
    stacks = len(body.output) - 1 - len(carried)
    condition = node.constant(1)
    conditional = not _stays_true(body) or (node.has(1) and condition is None)
    if node.has(1) and condition is not None and not condition.item():
        count: Any = 0
    else:
        count = _trip_count(node)
    if count is None and not conditional:
        raise Unsupported("it has neither a trip count nor a condition that may end it")
    if count is None and stacks:
        raise Unsupported("it stacks results and has no trip count, which bounds their memory; give it one")
    captured = _captured(node, [body])
    flag = _flag(node, node.tensor(1)) if node.has(1) else relax.const(True, "bool")
    states = [flag, *carried] if conditional else carried

    def step(number: Any, _: list[Any], own: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        goes_on, held = (state[0], state[1:]) if conditional else (relax.const(True, "bool"), state)
        with captured.seen(own):
            given = [_number(node, body.input[0], number), goes_on, *held]
            made = _results(node, body, given)
        kept = [_flag(node, made[0])] if conditional else []
        return [*kept, *made[1 : 1 + len(carried)]], made[1 + len(carried) :]

    with _refusals():
        last, stacked = scan(
            node.bb, "loop", count, states, [], captured.values, step, conditional, captured.sizes
        )
    return (*last[int(conditional) :], *stacked)


def _scan(node: Node) -> tuple[Any, ...]:
    """(first states, sequences) -> (last states, stacked results of the steps)."""
    if node.opset < 9:
        raise Unsupported(
            "operator set 8 has a batch axis in Scan; convert the model to operator set 9 or newer"
        )
    body, count = node.attributes["body"], node.attributes["num_scan_inputs"]
    given = [node.tensor(at) for at in range(len(node.inputs))]
    carried, sequences = given[: len(given) - count], given[len(given) - count :]
    stacks = len(body.output) - len(carried)
    directions = [
        *_several(node, "scan_input_directions", count),
        *_several(node, "scan_output_directions", stacks),
    ]
    axes = _several(node, "scan_input_axes", count)
    sequences = [
        _moved(node, x, positive(axis, len(shape_of(x))), 0) for x, axis in zip(sequences, axes, strict=True)
    ]
    steps = shape_of(sequences[0])[0]
    captured = _captured(node, [body])

    def step(_: Any, rows: list[Any], own: list[Any], state: list[Any]) -> tuple[list[Any], list[Any]]:
        with captured.seen(own):
            made = _results(node, body, [*state, *rows])
        return made[: len(carried)], made[len(carried) :]

    with _refusals():
        last, stacked = scan(
            node.bb,
            "scan",
            steps,
            carried,
            sequences,
            captured.values,
            step,
            sizes=captured.sizes,
            backwards=[bool(each) for each in directions],
        )
    to = _several(node, "scan_output_axes", stacks)
    return (
        *last,
        *(_moved(node, y, 0, positive(a, len(shape_of(y)))) for y, a in zip(stacked, to, strict=True)),
    )


def _results(node: Node, body: onnx.GraphProto, given: Sequence[Any]) -> list[Any]:
    """Convert a body and return its results. A shape that is not known yet is the one that the body declares."""
    made = []
    for value, info in zip(node.importer.convert_graph(body, given), body.output, strict=True):
        tensor = as_tensor(node.bb, value)
        dims = info.type.tensor_type.shape.dim
        fixed = [int(dim.dim_value) for dim in dims if dim.HasField("dim_value")]
        known = isinstance(tensor.ty.shape, relax.ShapeExpr) or tensor.ty.ndim == 0
        if not known and info.type.tensor_type.HasField("shape") and len(fixed) == len(dims):
            tensor = node.bb.match_cast(tensor, relax.TensorType(fixed, str(tensor.ty.dtype)))
        made.append(tensor)
    return made


def _several(node: Node, name: str, count: int) -> list[int]:
    """Return a list of integers, zeros if the attribute is missing."""
    return [int(v) for v in node.attributes.get(name) or [0] * count]


def _moved(node: Node, x: relax.Expr, source: int, to: int) -> relax.Expr:
    """Return a tensor with an axis in another position."""
    if source == to:
        return x
    order = [axis for axis in range(len(shape_of(x))) if axis != source]
    order.insert(to, source)
    return node.emit(R.permute_dims(x, order))


def _trip_count(node: Node) -> Any:
    """Return the number of steps as an int or a variable, or None if nothing bounds it."""
    if not node.has(0):
        return None
    known = node.constant(0)
    if known is not None:
        count = int(known.item())
        return None if count >= LONGEST else max(count, 0)
    given = node.inputs[0]
    if tvm.ir.is_prim_expr(given) and not isinstance(given.ty, relax.TensorType):
        return tirx.Cast("int64", given)
    return host_number(node.bb, node.tensor(0), "trips")


def _stays_true(body: onnx.GraphProto) -> bool:
    """Return True if the condition behind each step is the one before it, or is constantly true."""
    name, seen = body.output[0].name, body.input[1].name
    made = {output: n for n in body.node for output in n.output}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if name == seen:
        return True
    constants = {tensor.name: tensor for tensor in body.initializer}
    if name in made and made[name].op_type == "Constant":
        values = [a.t for a in made[name].attribute if a.name == "value"]
        return bool(values) and bool(onnx.numpy_helper.to_array(values[0]).item())
    return name in constants and bool(onnx.numpy_helper.to_array(constants[name]).item())


def _flag(node: Node, x: relax.Expr) -> relax.Expr:
    """Return a condition as a tensor without axes."""
    return x if x.ty.ndim == 0 else node.emit(R.reshape(x, []))


def _number(node: Node, declared: onnx.ValueInfoProto, number: Any) -> relax.Expr:
    """Return the number of a step as a tensor. Exporters declare it with one axis, or without."""
    value = scalar(node.bb, number)
    one = len(declared.type.tensor_type.shape.dim) == 1
    return node.emit(R.reshape(value, [1])) if one else value


class _Captured:
    """Values of enclosing graphs that a body reads: ``values`` are tensors, ``sizes`` variables of shapes."""

    def __init__(self, importer: Any, bb: relax.BlockBuilder, names: Sequence[str]):
        self.nodes: dict[str, Any] = importer._nodes
        self.names: list[str] = []
        self.values: list[Any] = []
        sizes: dict[Any, None] = {}
        for name in names:
            value = self.nodes[name]
            if isinstance(value, relax.Var) and isinstance(value.ty, relax.TensorType):
                self.names.append(name)
                self.values.append(value)
            elif isinstance(value, relax.ShapeExpr):
                sizes |= dict.fromkeys(v for e in value.values for v in tirx.analysis.undefined_vars(e))
            elif tvm.ir.is_prim_expr(value) and not isinstance(value, tvm.ir.GenericConst):
                sizes |= dict.fromkeys(tirx.analysis.undefined_vars(value))
            elif not isinstance(value, tvm.ir.GenericConst):
                self.names.append(name)
                self.values.append(as_tensor(bb, value))
        self.sizes = list(sizes)

    @contextmanager
    def seen(self, own: Sequence[Any]) -> Iterator[None]:
        """Let a body read its own parameters in place of the captured values."""
        before = {name: self.nodes[name] for name in self.names}
        self.nodes.update(zip(self.names, own, strict=True))
        try:
            yield
        finally:
            self.nodes.update(before)


def _captured(node: Node, graphs: Sequence[onnx.GraphProto]) -> _Captured:
    known: Mapping[str, Any] = node.importer._nodes
    names = dict.fromkeys(name for graph in graphs for name in _read(graph) if name in known)
    return _Captured(node.importer, node.bb, list(names))


def _read(graph: onnx.GraphProto) -> list[str]:
    """Return the names that a graph reads from outside of it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found: dict[str, None] = {}
    for each in graph.node:
        inner = [name for a in each.attribute if a.HasField("g") for name in _read(a.g)]
        found |= dict.fromkeys(name for name in (*each.input, *inner) if name and name not in own)
        own |= set(each.output)
    found |= dict.fromkeys(value.name for value in graph.output if value.name not in own)
    return list(found)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals of loops and branches into refusals of the node."""
    try:
        yield
    except (ChangingState, UnequalBranches) as error:
        raise Unsupported(str(error)) from None


CONVERSIONS = {
    ("", "If"): Conversion(_if, {"then_branch": ANY, "else_branch": ANY}),
    ("", "Loop"): Conversion(_loop, {"body": ANY}),
    ("", "Scan"): Conversion(
        _scan,
        dict.fromkeys(
            (
                "body",
                "num_scan_inputs",
                "scan_input_axes",
                "scan_input_directions",
                "scan_output_axes",
                "scan_output_directions",
            ),
            ANY,
        ),
    ),
}
