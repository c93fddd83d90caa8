# SPDX-License-Identifier: Apache-2.0
"""View a Relax dataflow block as the nodes that scope identification works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from ...compat import elements, free_vars
from ...compute.cpu.emit import COMPUTE_ATTR
from ...compute.cuda.epilogue import EPILOGUES_ATTR, is_epilogue
from ...graph.extent import as_extent, same
from ...graph.ir import StitchGraph
from ...graph.reader import Unreadable, read
from ...graph.rewrite.constants import with_numbers
from ...repairs.prim_funcs import is_scheduled
from ...report.flow import Flow, FlowNode, RefusedEdge
from ...scope.identified import Identified
from ...scope.node import Node, NodeKind, Value, kind_of, specialize
from ...support.failures import reason_of
from ..rewriting.extents import is_unusual
from ..rewriting.operators import operator_name
from .numbers import number_in

SUMS_ATTR = "tvm_stitch.sums_of"
"""Mark of functions that compute a product of few rows by sums. Its value is the product's own function as JSON."""

OWN = "computed by a kernel of its own"
LIBRARY = "computed by a function outside the module"
"""Reasons of calls that no scope may take."""


@dataclass
class BlockView:
    """The nodes of a dataflow block, each with its bindings, and the name of each value.

    A value is the Relax variable or constant, or ``(variable, index)`` for one result of a call with several.
    ``item`` maps such a result to the variable that names it in the program. ``numbers`` has the numbers that replace
    constants in calls, by the position among the call's tensors. A node's inputs are without these constants.
    """

    nodes: list[Node] = field(default_factory=list)
    bindings: dict[Node, Any] = field(default_factory=dict)
    item: dict[Value, Any] = field(default_factory=dict)
    numbers: dict[Node, dict[int, Any]] = field(default_factory=dict)

    def named(self, value: Value) -> Any:
        """Return the variable that names a value in the program, or the value itself if it has no name."""
        return self.item.get(value, value)


class GraphReader:
    """Reads the PrimFuncs of a module, each once."""

    def __init__(self, mod: tvm.IRModule):
        self.mod = mod
        self.cache: dict[Any, StitchGraph | str] = {}
        self.static: set[Any] = set()  # functions whose shapes are all numbers
        self.facts: dict[Any, tuple[bool, int, bool, bool]] = {}

    def graph(
        self,
        gvar: tvm.ir.GlobalVar,
        args: list[relax.Expr],
        scalars: Sequence[relax.Expr] = (),
        results: Sequence[Any] = (),
    ) -> StitchGraph:
        """Return the graph of a function, with symbolic shapes and scalar parameters written in the caller's symbols.

        ``results`` are the types of the call's results.

        Raises:
            Unreadable: with the reason.
        """
        graph = self._found(gvar)
        if isinstance(graph, str):
            raise Unreadable(graph)
        if len(graph.symbols) != len(scalars):
            raise Unreadable("the function takes scalar arguments")
        if gvar in self.static:
            return graph
        values: dict[Any, Any] = dict(zip(graph.symbols, scalars))
        types = [arg.ty for arg in args]
        for t, ty in zip([*graph.inputs[: len(args)], *graph.outputs], [*types, *results]):
            shape = getattr(ty, "shape", None)
            if shape is None:
                raise Unreadable("an argument's shape is unknown")
            for formal, actual in zip(t.buffer.shape, shape):
                if type(formal).__name__ != "Var":
                    continue
                if not same(as_extent(values.setdefault(formal, actual)), as_extent(actual)):
                    raise Unreadable(
                        f"its arguments and results say that {formal} is {values[formal]} and {actual}"
                    )
        for t in graph.tensors():
            unknown = [v for s in t.shape if not isinstance(s, int) for v in free_vars(s) if v not in values]
            if unknown:  # it may be another number in another call
                raise Unreadable(f"no argument or result says what {unknown[0]} is")
        return specialize(graph, values)

    def is_static(self, gvar: Any) -> bool:
        """Return whether all shapes of a readable function are numbers."""
        self._found(gvar)
        return gvar in self.static

    def is_own(self, gvar: Any) -> bool:
        """Return whether a function is a kernel of this package already."""
        return self._facts(gvar)[0]

    def pattern(self, gvar: Any) -> int:
        """Return a function's ``TOpPattern``."""
        return self._facts(gvar)[1]

    def are_sums(self, gvar: Any) -> bool:
        """Return whether a function computes a product of few rows by sums, which are memory-intensive."""
        return self._facts(gvar)[2]

    def takes_epilogues(self, gvar: Any) -> bool:
        """Return whether a function is a convolution's kernel of this package that can compute epilogues as well."""
        return self._facts(gvar)[3]

    def _facts(self, gvar: Any) -> tuple[bool, int, bool, bool]:
        if gvar not in self.facts:
            attrs = self.mod[gvar].attrs or {}
            self.facts[gvar] = (
                COMPUTE_ATTR in attrs,
                int(attrs.get("op_pattern", Node.pattern)),
                SUMS_ATTR in attrs,
                EPILOGUES_ATTR in attrs,
            )
        return self.facts[gvar]

    def _found(self, gvar: Any) -> StitchGraph | str:
        if gvar not in self.cache:
            result = self.cache[gvar] = self._read(self.mod[gvar], gvar.name_hint)
            if isinstance(result, StitchGraph) and all(
                isinstance(s, int) for t in result.tensors() for s in t.shape
            ):
                self.static.add(gvar)
        return self.cache[gvar]

    @staticmethod
    def _read(func: tirx.PrimFunc, name: str) -> StitchGraph | str:
        if is_scheduled(func):
            return "it is scheduled already"
        try:
            graph = read(func, name)
        except Exception as err:  # any hand-written function compiles without stitching
            return reason_of(err, name, quiet=True)
        for t in [*graph.inputs, *graph.outputs]:
            if any(str(s.ty) != "int64" for s in t.buffer.shape):
                return f"the shape of {t.name} is not int64, which FuseTIR does not merge"
        return graph


def view_block(block: relax.BindingBlock, reader: GraphReader) -> BlockView:
    """Return the nodes of a dataflow block."""
    view = BlockView()
    tuples = _splittable(block)
    packed = {b.var: str(b.value.args[0].global_symbol) for b in block.bindings if _is_packed(b.value)}
    sizes: set[tirx.Var] = set()
    for binding in block.bindings:
        value, var = binding.value, binding.var
        if type(value).__name__ == "TupleGetItem" and value.tuple_value in tuples:
            view.item[(value.tuple_value, int(value.index))] = var
            continue
        node = _node(binding, reader, tuples)
        if sizes:
            node.sizes = [each for each in relax.analysis.free_symbolic_vars(value) if each in sizes]
        if isinstance(binding, relax.MatchCast):
            symbols = relax.analysis.definable_tir_vars_in_type(binding.ty)
            node.defines = [each for each in symbols if each not in sizes]
            sizes.update(symbols)
        view.nodes.append(node)
        view.numbers[node] = _inlined(node)
        library = packed.get(var) or packed.get(getattr(value, "tuple_value", None))
        if library is not None:
            node.name, node.reason = library, LIBRARY
        view.bindings[node] = binding
    alias = {var: key for key, var in view.item.items()}
    known: dict[
        Value, Value
    ] = {}  # one Python object for a value: TVM makes a new one at each access, slow to compare
    for node in view.nodes:
        inputs = (alias.get(v, v) if not isinstance(v, tuple) else v for v in node.inputs)
        node.inputs = [known.setdefault(v, v) for v in inputs]
        node.outputs = [known.setdefault(v, v) for v in node.outputs]
        for out in node.outputs:
            name = view.item.get(out, out)
            if not isinstance(name, tuple) and type(name).__name__ != "DataflowVar":
                node.escapes.add(out)
    return view


def _inlined(node: Node) -> dict[int, Any]:
    """Write constants of one element that a memory-intensive call reads as numbers into its expressions.

    Returns:
        The numbers by their positions among the former inputs of the node.
    """
    if node.graph is None or node.kind is not NodeKind.MEMORY:
        return {}
    tensors = node.graph.inputs
    numbers = {i: number_in(v, tensors[i]) for i, v in enumerate(node.inputs)}
    inlined = {i: number for i, number in numbers.items() if number is not None}
    if inlined:
        node.inputs = [v for i, v in enumerate(node.inputs) if i not in inlined]
        node.graph = with_numbers(node.graph, {tensors[i]: number for i, number in inlined.items()})
    return inlined


def _splittable(block: relax.BindingBlock) -> set[relax.Var]:
    """Return the variables of calls with several results that are read one result at a time, under one name each."""
    splittable: set[Any] = set()
    named: set[Any] = set()
    for binding in block.bindings:
        if is_call_tir(binding.value) and len(result_types(binding.value)) > 1:
            if type(binding.var).__name__ == "DataflowVar":
                splittable.add(binding.var)
    if not splittable:
        return splittable
    for binding in block.bindings:
        if type(binding.value).__name__ == "TupleGetItem":
            result = (binding.value.tuple_value, int(binding.value.index))
            if result in named:
                splittable.discard(result[0])
            named.add(result)
            continue
        for v in relax.analysis.free_vars(binding.value):
            splittable.discard(v)
    return splittable


def is_call_tir(value: relax.Expr) -> bool:
    """Return True for ``R.call_tir(gvar, (...))``."""
    return operator_name(value) == "relax.call_tir"


def _is_packed(value: relax.Expr) -> bool:
    """Return True for ``R.call_dps_packed("function", (...))``, which is how libraries are called."""
    return operator_name(value) == "relax.call_dps_packed"


def call_args(value: relax.Call) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Return the tensor arguments of a ``call_tir``, and the scalar ones that follow them."""
    args = value.args[1]
    fields = elements(args.fields) if type(args).__name__ == "Tuple" else [args]
    tensors: list[Any] = []
    scalars: list[Any] = []
    for each in fields:
        (scalars if type(each.ty).__name__ == "PrimType" else tensors).append(each)
    return tensors, scalars


def result_types(value: relax.Expr) -> list[relax.Type]:
    """Return the types of a ``call_tir``'s results."""
    ty = value.ty_args[0]
    return list(ty.fields) if type(ty).__name__ == "TupleType" else [ty]


def _node(binding: relax.Binding, reader: GraphReader, tuples: set[relax.Var]) -> Node:
    value, var = binding.value, binding.var
    name = str(var.name)
    if is_call_tir(value):
        gvar = value.args[0]
        name = f"{gvar.name_hint}"
        args, scalars = call_args(value)
        results = result_types(value)
        several = len(results) > 1
        outputs = [(var, i) for i in range(len(results))] if several else [var]
        pattern = reader.pattern(gvar)
        if reader.is_own(gvar):
            takes = is_epilogue if reader.takes_epilogues(gvar) else None
            return Node(name, NodeKind.OPAQUE, args, outputs, reason=OWN, takes=takes)
        if several and var not in tuples:
            return Node(
                name, NodeKind.OPAQUE, args, [var], reason="its results are used as one tuple", is_call=True
            )
        try:
            if len(value.args) > 2:
                scalars += list(value.args[2].values)
            types = [] if reader.is_static(gvar) else [*(a.ty for a in args), *results]
            for ty in types:
                if any(map(is_unusual, getattr(ty, "shape", None) or ())):
                    raise Unreadable("an extent has an operator that TVM's passes over Relax do not copy")
            graph = reader.graph(gvar, args, scalars, results)
            if len(graph.inputs) != len(args) or len(graph.outputs) != len(outputs):
                raise Unreadable("a parameter is both read and written")
            kind = NodeKind.MEMORY if reader.are_sums(gvar) else kind_of(graph)
            reason = "compute-intensive" if kind is NodeKind.COMPUTE else ""
            return Node(name, kind, args, outputs, graph, reason, pattern=pattern)
        except Exception as err:
            reason = reason_of(err, name, quiet=True)
            return Node(name, NodeKind.OPAQUE, args, outputs, None, reason, is_call=True, pattern=pattern)
    used = list(relax.analysis.free_vars(value))
    return Node(name, NodeKind.OPAQUE, used, [var], reason="not a tensor function's call")


def flow_of(view: BlockView, identified: Identified) -> Flow:
    """Return the calls of a block and the edges on which kernels end, without objects of TVM."""
    makers = {value: i for i, node in enumerate(view.nodes) for value in node.outputs}
    nodes = tuple(
        FlowNode(
            tuple(_name_of(view.named(v)) for v in node.outputs),
            node.name,
            node.kind.value,
            node.reason,
            tuple(dict.fromkeys(makers[v] for v in node.inputs if v in makers)),
        )
        for node in view.nodes
    )
    refusals = tuple(RefusedEdge(*b.edge, b.reason) for b in identified.boundaries)
    return Flow(nodes, refusals, dict(identified.left))


def _name_of(value: relax.Var | tuple[relax.Var, int]) -> str:
    """Return a variable's name, or for one result of several without a name, the name of the whole and a number."""
    if isinstance(value, tuple):
        return f"{value[0].name}[{value[1]}]"
    return str(value.name)
