# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions expanded through element-wise producers, hash-consed: equal expressions have the same number.

Two values of a graph are the same function of an operator's axes if their terms are equal. The chain of broadcasts,
reshapes and casts to wider types that computes them does not matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ... import compat
from ...compat import Analyzer, Expr, Var, has_load, tir
from ..dtype import compute_dtype, item_bytes
from ..extent import as_expr, flatten, is_number
from ..ir import Axis, Operator, StitchGraph, Tensor


class Inexpressible(ValueError):
    """No term can express the expression (an element whose index is read from a tensor)."""


@dataclass(frozen=True)
class Term:
    """One node: its operation (``head``) and its argument terms. A load also has ``tensor`` and ``indices``."""

    head: tuple[object, ...]
    args: tuple[int, ...] = ()
    tensor: Tensor | None = None
    indices: tuple[Expr, ...] = ()


class Terms:
    """The terms of expressions over one set of axes.

    ``var`` maps each axis to a new variable, or to 0 for an extent of one.
    """

    def __init__(self, axes: Sequence[Axis]):
        self.analyzer = Analyzer()
        self.var: dict[Var, Expr] = {}
        for i, a in enumerate(axes):
            if is_number(a.extent, 1):
                self.var[a.var] = compat.const(0, "int64")
                continue
            var = tir.Var(f"axis{i}", "int64")
            compat.bind_range(self.analyzer, var, as_expr(a.extent))
            self.var[a.var] = var
        self.nodes: list[Term] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.expanded: dict[tuple[Operator, tuple[Hashable, ...]], int] = {}

    def value(self, op: Operator, values: Mapping[Var, Expr]) -> int:
        """Return the term of an operator's value at the given axes. For a reduction this is the value that it
        combines.

        Raises:
            Inexpressible: if an index is read from a tensor.
        """
        if _gathers(op):
            raise Inexpressible(f"{op.name} reads at indices that it reads from a tensor")
        return self._visit(op, op.value, values)

    def _visit(self, op: Operator, e: Expr, values: Mapping[Var, Expr]) -> int:
        name = compat.kind(e)
        if compat.is_load(e):
            return self._load(
                op.operand[compat.load_buffer(e)], [compat.substitute(i, values) for i in e.indices]
            )
        if name in ("Var", "SizeVar"):
            return self._make(("index", compat.expression_key(self.analyzer.simplify(values.get(e, e)))))
        if name in ("IntImm", "FloatImm", "StringImm"):
            return self._make(("const", e.value, repr(e.value)))  # 0.0, -0.0 and 0 are equal in Python
        if _is_widening(e):
            return self._visit(op, e.value, values)
        head: tuple[object, ...] = (
            name,
            compute_dtype(compat.dtype_of(e)) if name != "Cast" else compat.dtype_of(e),
        )
        if name == "Call":
            head = (*head, compat.call_name(e))
        return self._make(head, tuple(self._visit(op, o, values) for o in compat.operands(e)))

    def _load(self, tensor: Tensor, indices: Sequence[Expr]) -> int:
        simple = [self.analyzer.simplify(i) for i in indices]
        producer = tensor.producer
        if producer is None or _is_leaf(producer):
            flat = compat.expression_key(self.analyzer.simplify(flatten(simple, tensor.shape)))
            return self._make(("load", id(tensor), flat), (), tensor, tuple(simple))
        key = (producer, tuple(map(compat.expression_key, simple)))
        if key not in self.expanded:
            zero = compat.const(0, "int64")
            values = {a.var: zero for a in producer.axes}
            values.update({a.var: i for a, i in zip(producer.spatial, simple)})
            self.expanded[key] = self._visit(producer, producer.value, values)
        return self.expanded[key]

    def _make(
        self,
        head: tuple[object, ...],
        args: tuple[int, ...] = (),
        tensor: Tensor | None = None,
        indices: tuple[Expr, ...] = (),
    ) -> int:
        key = (*head, "of", *args)
        if key not in self.known:
            self.known[key] = len(self.nodes)
            self.nodes.append(Term(head, args, tensor, indices))
        return self.known[key]

    def constant(self, term: int) -> float | None:
        """Return the value of a constant term, or None for other terms."""
        head = self.nodes[term].head
        return float(head[1]) if head[0] == "const" and isinstance(head[1], (int, float)) else None

    def is_kind(self, term: int, name: str) -> bool:
        """Return whether the term's node is of that kind (the class name of the expression, or ``load``)."""
        return self.nodes[term].head[0] == name

    def scaled(self, term: int) -> tuple[Term, float] | None:
        """Return the load and the constant factor of a load multiplied or divided by constants, else None."""
        node = self.nodes[term]
        if node.head[0] == "load":
            return node, 1.0
        if node.head[0] not in ("Mul", "Div"):
            return None
        a, b = node.args
        if node.head[0] == "Mul" and self.constant(a) is not None:
            a, b = b, a
        factor, inner = self.constant(b), self.scaled(a)
        if factor is None or inner is None or factor == 0:
            return None
        return inner[0], inner[1] * factor if node.head[0] == "Mul" else inner[1] / factor


class Leaves:
    """The tensors that element-wise operators compute values from: inputs, results of reductions, gathered elements.

    Equal terms have equal leaves. Leaves are found once for each tensor, and so cost far less than terms.
    """

    def __init__(self, graph: StitchGraph):
        self._known: dict[Tensor, frozenset[Tensor]] = {}
        for op in graph.operators:
            self._known[op.output] = frozenset([op.output]) if _is_leaf(op) else self.of(op, op.value)

    def of(self, op: Operator, value: Expr) -> frozenset[Tensor]:
        """Return the leaves of a part of an operator's value."""
        read = [op.operand[compat.load_buffer(e)] for e in compat.parts(value) if compat.is_load(e)]
        return frozenset().union(*(self._known.get(tensor, (tensor,)) for tensor in read))

    def may_be_square(self, op: Operator) -> bool:
        """Return False if the term of an operator's value is neither a power nor a product of equal terms."""
        value = op.value
        while True:
            if compat.is_load(value):
                producer = op.operand[compat.load_buffer(value)].producer
                if producer is None or _is_leaf(producer):
                    return False
                op, value = producer, producer.value
            elif _is_widening(value):
                value = value.value
            else:
                break
        if compat.kind(value) == "Mul":
            return self.of(op, value.a) == self.of(op, value.b)
        return compat.kind(value) == "Call"


def _is_leaf(producer: Operator) -> bool:
    return producer.is_reduce or _gathers(producer)


def _is_widening(e: Expr) -> bool:
    return compat.kind(e) == "Cast" and widens(compat.dtype_of(e.value), compat.dtype_of(e))


def _gathers(op: Operator) -> bool:
    return any(has_load(i) for a in op.accesses for i in a.indices)


def widens(source: str, target: str) -> bool:
    """Return whether a cast between these floats changes no value."""
    floats = source.startswith(("float", "bfloat")) and target.startswith(("float", "bfloat"))
    return source == target or (floats and item_bytes(source) < item_bytes(target))
