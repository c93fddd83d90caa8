# SPDX-License-Identifier: Apache-2.0
"""Nodes of the graph in which scopes are identified: calls of tensor functions, and everything else."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from ..compat import Var, kind, substitute
from ..graph.classify import is_heavy
from ..graph.dtype import item_bytes
from ..graph.extent import as_expr, as_extent, is_number
from ..graph.ir import Access, Axis, Dependency, OpClass, Operator, Span, StitchGraph, Tensor, copied

Value = Hashable
"""A tensor value of the host program, compared by identity. The front end chooses the representation."""


class NodeKind(enum.Enum):
    """Class of a node for scope identification."""

    MEMORY = "memory-intensive"
    COMPUTE = "compute-intensive"
    OPAQUE = "opaque"


@dataclass(eq=False)
class Node:
    """One call. ``graph`` is its computation over ``inputs`` and ``outputs`` in order, or None if it is not
    readable.

    ``reason`` says why a node is not memory-intensive. ``escapes`` marks outputs used beyond the graph. ``is_call``
    marks a call of a tensor function (readable or not).

    Three fields describe it for TVM's fusion. ``pattern`` is its ``TOpPattern``. ``elementwise`` holds inputs that
    it reads element by element although the pattern is wider. ``tupled`` says that it takes its inputs as one
    tuple.

    ``takes`` is set for opaque calls whose kernels can compute element-wise nodes behind them. It returns whether the
    kernel can compute a graph. Its arguments are the graph and the number of the input that is the call's result.

    ``defines`` and ``sizes`` hold the sizes that a node computes at run time, and those it needs that others compute.
    """

    name: str
    kind: NodeKind
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    graph: StitchGraph | None = None
    reason: str = ""
    escapes: set[Value] = field(default_factory=set)
    index: int = -1
    is_call: bool = False
    pattern: int = 8
    elementwise: frozenset[Value] = frozenset()
    tupled: bool = False
    takes: Callable[[StitchGraph, int], bool] | None = None
    defines: Sequence[Value] = ()
    sizes: Sequence[Value] = ()
    # The graph, and whether it is a view, which is asked many times.
    _view: tuple[StitchGraph | None, bool] | None = field(default=None, init=False, repr=False)

    @property
    def is_view(self) -> bool:
        """True for a reshape, which moves nothing outside a kernel."""
        if self._view is None or self._view[0] is not self.graph:
            self._view = self.graph, self._moves_nothing()
        return self._view[1]

    def _moves_nothing(self) -> bool:
        op = self._only_operator
        if op is None or op.output.dtype != op.inputs[0].dtype:
            return False
        # Without axes the access counts as a view, whatever its span.
        if is_number(op.output.size, 1) and is_number(op.inputs[0].size, 1):
            return op.op_class in (OpClass.MOVE, OpClass.BROADCAST)
        return op.op_class is OpClass.MOVE and op.accesses[0].span is Span.ALL

    @property
    def widens(self) -> bool:
        """True if each element is cheaply computed from a narrower element at the same position, and from scalars.

        Casts do so, and dequantization of integers.
        """
        return self.widened is not None

    @property
    def widened(self) -> Value | None:
        """The tensor whose elements a node widens, or None if it does something else."""
        g = self.graph
        if g is None or len(g.operators) != 1 or len(g.inputs) != len(self.inputs) or self.is_view:
            return None
        (op,) = g.operators
        if op.is_reduce or is_heavy(op.value) or any(a.guarded for a in op.accesses):
            return None
        whole = [a for a in op.accesses if a.span is Span.ALL and op.dependency(a) is Dependency.ONE_TO_ONE]
        rest = [a.tensor for a in op.accesses if a not in whole]
        if len({a.tensor for a in whole}) != 1 or not all(is_number(t.size, 1) for t in rest):
            return None
        tensor = whole[0].tensor
        if item_bytes(op.output.dtype) <= item_bytes(tensor.dtype):
            return None
        return self.inputs[g.inputs.index(tensor)]

    @property
    def is_float_cast(self) -> bool:
        """True for a cast from one floating-point type to another."""
        op = self._only_operator
        if (
            op is None
            or kind(op.value) != "Cast"
            or op.dependency(op.accesses[0]) is not Dependency.ONE_TO_ONE
        ):
            return False
        return all(t.dtype.startswith(("float", "bfloat")) for t in (op.inputs[0], op.output))

    @property
    def _only_operator(self) -> Operator | None:
        """The operator of a graph with a single one, if it reads a single input once and unguarded. Else None."""
        g = self.graph
        if g is None or len(g.operators) != 1 or len(g.inputs) != 1:
            return None
        (op,) = g.operators
        return op if len(op.accesses) == 1 and not op.accesses[0].guarded else None


def kind_of(graph: StitchGraph) -> NodeKind:
    """Return the kind of a graph: memory-intensive unless some block is a contraction."""
    return NodeKind.COMPUTE if graph.has_products else NodeKind.MEMORY


def specialize(graph: StitchGraph, values: dict[Var, object]) -> StitchGraph:
    """Return the graph with its symbolic shape variables replaced by expressions of the caller."""
    if not values:
        return graph
    exprs = {k: as_expr(v) for k, v in values.items()}

    def ext(e: object) -> object:
        return e if isinstance(e, int) else as_extent(substitute(e, exprs))

    tensors: dict[Tensor, Tensor] = {}
    for t in graph.tensors():
        tensors[t] = Tensor(t.name, tuple(ext(s) for s in t.shape), t.dtype, t.buffer)
    return StitchGraph(
        graph.name,
        [tensors[t] for t in graph.inputs],
        [copied(_substituted(op, exprs), tensors) for op in graph.operators],
        [tensors[t] for t in graph.outputs],
        graph.symbols,
    )


def _substituted(op: Operator, exprs: dict) -> Operator:
    """Return the operator with its symbolic shape variables replaced, over the same tensors."""

    def axis(a: Axis) -> Axis:
        return a if isinstance(a.extent, int) else Axis(a.var, as_extent(substitute(a.extent, exprs)))

    def access(a: Access) -> Access:
        return replace(a, indices=tuple(substitute(i, exprs) for i in a.indices))

    return replace(
        op,
        spatial=tuple(map(axis, op.spatial)),
        reduce=tuple(map(axis, op.reduce)),
        value=substitute(op.value, exprs),
        accesses=tuple(map(access, op.accesses)),
    )
