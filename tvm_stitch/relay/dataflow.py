# SPDX-License-Identifier: Apache-2.0
"""Convert a Relay expression into the nodes that scope identification works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import relay, tir

from ..graph.reader import Unreadable
from ..scope.node import Node, NodeKind, Value, kind_of
from ..support.failures import Refusal, error_text, reason_of
from .lower import OpReader, short_name, tensor_types, type_of
from .templates.choice import Templates
from .traverse import children, post_order

Expr = Any

FUSIBLE = 4
"""The highest ``TOpPattern`` of operators whose schedules in TVM can include element-wise operators."""


@dataclass
class Region:
    """Nodes of an expression without branches, and the representation of each value.

    A value is the Relay expression that computes it, or ``(call, index)`` for one result of a call with several.
    Tuples and variables bound by ``let`` are replaced by their contents. ``lets`` are the bound variables in order,
    and ``result`` is the body of the last one. ``named`` are variables used by code that is not analysed.
    ``computed`` says why no template serves a compute-intensive node.
    """

    nodes: list[Node] = field(default_factory=list)
    expr: dict[Node, Expr] = field(default_factory=dict)
    lets: dict[Any, Expr] = field(default_factory=dict)
    result: Expr = None
    named: set[Any] = field(default_factory=set)
    several: set[Expr] = field(default_factory=set)
    computed: dict[Node, str] = field(default_factory=dict)

    def value(self, expr: Expr) -> Any:
        """Return the value that an expression other than a tuple refers to."""
        while True:
            if isinstance(expr, relay.Var) and expr in self.lets:
                expr = self.lets[expr]
            elif isinstance(expr, relay.TupleGetItem):
                whole = self.value(expr.tuple_value)
                if isinstance(whole, relay.Tuple):
                    expr = whole.fields[expr.index]
                elif whole in self.several:
                    return (whole, int(expr.index))
                else:
                    return expr
            else:
                return expr

    def leaves(self, expr: Expr) -> list[Value]:
        """Return the values in an expression, with a tuple's fields one by one."""
        value = self.value(expr)
        if isinstance(value, relay.Tuple):
            return [v for f in value.fields for v in self.leaves(f)]
        if value in self.several:
            return results_of(value)
        return [value]


def results_of(call: Expr) -> list[Value]:
    """Return the results of a call, as values."""
    if isinstance(call.checked_type, relay.TupleType):
        return [(call, i) for i in range(len(call.checked_type.fields))]
    return [call]


def view(root: Expr, reader: OpReader, templates: Templates | None = None) -> Region:
    """Return the nodes of an expression. Branches and function literals are not analysed.

    Calls that ``templates`` serve become nodes with the graphs of the templates.
    """
    region = Region()
    chain: set[Expr] = set()  # the bindings at the beginning of the region, the only ones to be analysed
    tail = root
    while isinstance(tail, relay.Let):
        chain.add(tail)
        region.lets[tail.var] = tail.value
        tail = tail.body
    region.result = tail
    order = list(post_order([root], lambda e: _operands(e, chain)))
    for expr in order:
        if _is_operator_call(expr) and isinstance(expr.checked_type, relay.TupleType):
            region.several.add(expr)
    for expr in order:
        node = _node(expr, region, reader, chain, templates)
        if node is not None:
            region.nodes.append(node)
            region.expr[node] = expr
    escaping = set(region.leaves(tail))
    for var in region.named & set(region.lets):
        escaping |= set(region.leaves(var))
    for node in region.nodes:
        node.escapes |= escaping & set(node.outputs)
    return region


def _operands(expr: Expr, chain: set[Expr]) -> list[Expr]:
    if isinstance(expr, relay.Let):
        return children(expr) if expr in chain else []
    if isinstance(expr, relay.If):
        return [expr.cond]
    if isinstance(expr, relay.Call):
        computed = (relay.Var, relay.Call, relay.TupleGetItem, relay.If, relay.Let)
        return ([expr.op] if isinstance(expr.op, computed) else []) + list(expr.args)
    return children(expr)


def _is_operator_call(expr: Expr) -> bool:
    return isinstance(expr, relay.Call) and hasattr(expr.op, "get_attr") and hasattr(expr.op, "name")


def _node(
    expr: Expr, region: Region, reader: OpReader, chain: set[Expr], templates: Templates | None
) -> Node | None:
    """Return the node that computes the expression's value, if there is one."""
    if _is_operator_call(expr):
        return _operator(expr, region, reader, templates)
    if isinstance(expr, relay.TupleGetItem):
        if region.value(expr) is not expr:
            return None
        return Node(
            "item", NodeKind.OPAQUE, region.leaves(expr.tuple_value), [expr], reason="a result of several"
        )
    if isinstance(expr, relay.Let) and expr in chain:
        return None
    opaque = (relay.Call, relay.If, relay.Let, relay.Match, relay.Function)
    if isinstance(expr, (*opaque, relay.RefCreate, relay.RefRead, relay.RefWrite)):
        hidden = _hidden_variables(expr)
        region.named |= hidden
        inputs = [v for e in _operands(expr, chain) for v in region.leaves(e)]
        inputs += [v for var in hidden for v in region.leaves(var)]
        name = type(expr).__name__.lower()
        return Node(name, NodeKind.OPAQUE, inputs, [expr], reason="not a call of an operator")
    return None


def _hidden_variables(expr: Expr) -> set[Any]:
    """Return variables used by the parts of an expression that are not analysed."""
    if isinstance(expr, relay.Call):
        inside = [expr.op] if isinstance(expr.op, relay.Function) else []
    elif isinstance(expr, relay.If):
        inside = [expr.true_branch, expr.false_branch]
    else:
        inside = [expr]
    return {v for e in inside for v in relay.analysis.free_vars(e)}


def _operator(call: Expr, region: Region, reader: OpReader, templates: Templates | None) -> Node:
    node, why = None, ""
    if templates is not None and _pattern(call.op) == FUSIBLE:
        node, why = _of_template(call, region, templates)
    if node is None:
        node = _read(call, region, reader)
        if why and node.kind is NodeKind.COMPUTE:
            region.computed[node] = why
    node.pattern = _pattern(call.op)
    node.elementwise = frozenset(v for v in node.inputs if _shape(v) == _shape(call))
    node.tupled = any(isinstance(region.value(a), relay.Tuple) for a in call.args)
    return node


def _shape(value: Value) -> Any:
    """Return the shape of a tensor as text, or None for several tensors."""
    ty = type_of(value)
    return str(ty.shape) if isinstance(ty, relay.TensorType) else None


def _of_template(call: Expr, region: Region, templates: Templates) -> tuple[Node | None, str]:
    """Return the node of a call that a template computes, or None and the reason."""
    name = short_name(call.op.name)
    try:
        _readable(call)
        inputs: list[Value] = []
        args = [_argument(a, region, inputs) for a in call.args]
        graph = templates.graph(call, inputs, args)
    except Refusal as err:
        return None, error_text(err)
    except Exception as err:
        return None, reason_of(err, name, quiet=True)
    return Node(name, NodeKind.COMPUTE, inputs, results_of(call), graph, "compute-intensive"), ""


def _read(call: Expr, region: Region, reader: OpReader) -> Node:
    name, op = short_name(call.op.name), call.op
    leaves = [v for a in call.args for v in region.leaves(a)]
    outputs = results_of(call)
    try:
        _readable(call)
        inputs: list[Value] = []
        args = [_argument(a, region, inputs) for a in call.args]
        graph = reader.graph(call, inputs, args)
        if len(graph.outputs) != len(outputs):
            raise Unreadable("a result is also an argument")
    except Exception as err:
        return Node(
            name, NodeKind.OPAQUE, leaves, outputs, reason=reason_of(err, name, quiet=True), is_call=True
        )
    kind = kind_of(graph)
    if kind is NodeKind.COMPUTE and _pattern(op) > FUSIBLE:
        return Node(name, NodeKind.OPAQUE, leaves, outputs, reason="compute-intensive, fused with nothing")
    return Node(name, kind, inputs, outputs, graph, "compute-intensive" if kind is NodeKind.COMPUTE else "")


def _pattern(op: Any) -> int:
    pattern = op.get_attr("TOpPattern")
    return 8 if pattern is None else int(pattern)


def _readable(call: Expr) -> None:
    op = call.op
    if op.get_attr("TOpIsStateful"):
        raise Unreadable("its result depends on more than its arguments")
    if op.get_attr("TNonComputational"):
        raise Unreadable("it computes nothing")
    if op.name in ("annotation.stop_fusion", "annotation.checkpoint", "on_device", "device_copy"):
        raise Unreadable("it marks a boundary")
    if op.name == "strided_set":
        raise Unreadable("TVM does not come to an end with simplifying kernels that have it")
    for expr in [*call.args, call]:
        for ty in tensor_types(expr.checked_type):
            if not all(isinstance(s, tir.IntImm) for s in ty.shape):
                raise Unreadable("a shape is known at run time only")


def _argument(expr: Expr, region: Region, inputs: list[Value]) -> Any:
    """Return an argument for :meth:`OpReader.graph`. Scalar constants stay, other values are collected in
    ``inputs``.
    """
    value = region.value(expr)
    if isinstance(value, relay.Tuple):
        return [_argument(f, region, inputs) for f in value.fields]
    if value in region.several:
        return [_number(v, inputs) for v in results_of(value)]
    if isinstance(value, relay.Constant) and not value.checked_type.shape:
        if value.checked_type.dtype != "bfloat16":  # TVM makes no constant of bfloat16 in a tensor expression
            return value
    if not isinstance(value, tuple) and isinstance(value.checked_type, relay.TupleType):
        raise Unreadable("an argument is a tuple made elsewhere")
    return _number(value, inputs)


def _number(value: Value, inputs: list[Value]) -> int:
    if value not in inputs:
        inputs.append(value)
    return inputs.index(value)
