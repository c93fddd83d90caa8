# SPDX-License-Identifier: Apache-2.0
"""The epilogue of a CUDA kernel on a tile of a convolution's results, before they are written.

An epilogue is a graph of element-wise operators on the result ``<images, channels, positions...>``, or ``<images,
positions..., channels>``. Its other operands have some of these axes: all (a residual), channels (a bias), images and
channels (a gate), or lines of positions.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from ... import compat
from ...codegen import builder as B
from ...codegen.evaluator import convert, widen
from ...compat import Buffer, Expr, tir
from ...cost.choices import Choices
from ...graph.dtype import FLOATS, compute_dtype
from ...graph.extent import is_number, same
from ...graph.ir import Access, Operator, StitchGraph, Tensor
from ...graph.names import short_name
from ...graph.rewrite.build import assemble
from ...repairs.tir.arithmetic import DEVICE
from ...repairs.tir.negation import hidden_negation
from ...repairs.tir.opaque import C_TYPES
from ...support.failures import Refusal
from .positions import Axes, LastAxis, Positions

VECTORS = frozenset({"float32", "float16", "bfloat16"})
"""Element types whose neighbours an epilogue reads and writes at once."""
DTYPES = frozenset({*FLOATS, *C_TYPES})
"""Element types that an epilogue reads and writes."""
EPILOGUES_ATTR = "tvm_stitch.takes_epilogues"
"""Mark of convolution kernels that can compute any epilogue as well."""


@dataclass(frozen=True)
class Epilogue:
    """An epilogue that can be evaluated on a tile.

    Attributes:
        graph: its operators, in topological order.
        product: the convolution's result, an input of the graph.
        operands: its other inputs, each with its axes.
    """

    graph: StitchGraph
    product: Tensor
    operands: tuple[tuple[Tensor, Axes], ...]

    @property
    def rank(self) -> int:
        """Number of axes of the result."""
        return len(self.product.shape)

    def buffers(self, whole: Sequence[Expr]) -> list[Buffer]:
        """Return the buffers of the operands and results, for a result of the extents ``whole``."""
        every = tuple(range(len(whole)))
        tensors = [*self.operands, *((tensor, every) for tensor in self.graph.outputs)]
        return [
            tir.decl_buffer([B.i64(1) if at is None else whole[at] for at in axes], tensor.dtype, tensor.name)
            for tensor, axes in tensors
        ]


def without_sum(graph: StitchGraph, splits: Tensor) -> StitchGraph:
    """Return a graph whose first operator sums a convolution's splits, with the sums as an input instead.

    Raises:
        Refusal: if the splits are read in another way.
    """
    if len(splits.consumers) != 1 or splits.consumers[0].is_reduce:
        raise Refusal(f"{splits.name} is not added up in one place")
    (added,) = splits.consumers
    inputs = [added.output if tensor is splits else tensor for tensor in graph.inputs]
    operators = [op for op in graph.operators if op is not added]
    return assemble(StitchGraph(graph.name, inputs, operators, graph.outputs, graph.symbols), operators)


def components(graph: StitchGraph, products: Sequence[int]) -> list[tuple[StitchGraph, tuple[int, ...]]]:
    """Return the components of a graph that share no operator, and none of the ``products`` (numbers of inputs).

    Each comes with all inputs, and the numbers of its outputs in the graph.
    """
    shared = {graph.inputs[i] for i in products}
    groups: list[tuple[set[Tensor], list[int]]] = []
    for number, output in enumerate(graph.outputs):
        reached, numbers = _reached(output, shared), [number]
        for group in [group for group in groups if not group[0].isdisjoint(reached)]:
            groups.remove(group)
            reached, numbers = reached | group[0], [*group[1], *numbers]
        groups.append((reached, numbers))
    return [(_giving(graph, sorted(numbers)), tuple(sorted(numbers))) for _, numbers in groups]


def _reached(output: Tensor, shared: Container[Tensor]) -> set[Tensor]:
    """Return the tensors that a tensor depends on, without inputs that are not in ``shared``."""
    reached: set[Tensor] = set()
    waiting = [output]
    while waiting:
        tensor = waiting.pop()
        if tensor not in reached and (tensor.producer is not None or tensor in shared):
            reached.add(tensor)
            waiting += tensor.producer.inputs if tensor.producer is not None else []
    return reached


def _giving(graph: StitchGraph, numbers: Sequence[int]) -> StitchGraph:
    outputs = [graph.outputs[number] for number in numbers]
    selected = StitchGraph(graph.name, graph.inputs, graph.operators, outputs, graph.symbols)
    return assemble(selected, graph.operators)


def is_epilogue(graph: StitchGraph, number: int) -> bool:
    """Return whether a graph is an epilogue of the convolution that computes its input of that number."""
    try:
        epilogue_of(graph, graph.inputs[number])
    except Refusal:
        return False
    return True


def epilogue_of(graph: StitchGraph, product: Tensor) -> Epilogue:
    """Return a graph as the epilogue of the convolution that computes one of its inputs.

    Raises:
        Refusal: if the graph is not element-wise in that input.
    """
    whole: Axes = tuple(range(len(product.shape)))
    operands: dict[Tensor, Axes] = {}
    for output in graph.outputs:
        if output.producer is None or len(output.shape) != len(whole):
            raise Refusal(f"{output.name} is not an element-wise function of the convolution's result")
        if not all(map(same, output.shape, product.shape)) or output.dtype not in DTYPES:
            raise Refusal(f"{output.name} has another shape or dtype than an epilogue's results")
    for op, axes in _points(graph, whole):
        _check(op)
        for access in op.accesses:
            tensor, inner = access.tensor, _axes_of(access, op, axes)
            if tensor.producer is not None:
                continue
            if tensor is product and inner != whole:
                raise Refusal("the convolution's result is not read element by element")
            if tensor is not product and operands.setdefault(tensor, inner) != inner:
                raise Refusal(f"{tensor.name} is read in two ways")
    for tensor, inner in operands.items():
        _check_operand(tensor, inner, product)
    return Epilogue(graph, product, tuple(operands.items()))


def _points(graph: StitchGraph, whole: Axes) -> Iterator[tuple[Operator, Axes]]:
    """Yield the operators with the axes at which they are evaluated, each before its operands."""
    visited: dict[tuple[Operator, Axes], None] = {}
    waiting = [(output.producer, whole) for output in graph.outputs if output.producer is not None]
    while waiting:
        key = waiting.pop()
        if key in visited:
            continue
        visited[key] = None
        yield key
        op, axes = key
        for access in op.accesses:
            if access.tensor.producer is not None:
                waiting.append((access.tensor.producer, _axes_of(access, op, axes)))


def _axes_of(access: Access, op: Operator, axes: Axes) -> Axes:
    """Return the axes of the result that index an operator's operand, if ``axes`` index the operator."""
    of_axis = {axis.var: at for axis, at in zip(op.spatial, axes)}
    result_axes: list[int | None] = []
    for index in access.indices:
        if compat.int_value(index) == 0:
            result_axes.append(None)
        elif index in of_axis:
            result_axes.append(of_axis[index])
        else:
            raise Refusal(f"{access.tensor.name} is not read along whole axes")
    return tuple(result_axes)


def _check(op: Operator) -> None:
    """Raise a Refusal for reductions, and for operators that depend on the position or on a size."""
    if op.is_reduce or any(access.guarded for access in op.accesses):
        raise Refusal(f"{op.name} is not element-wise")

    def visit(e: Expr) -> bool:
        return compat.kind(e) in ("Var", "SizeVar") or any(map(visit, _operands(e)))

    if visit(op.value):
        raise Refusal(f"{op.name} depends on its position, or on a size")


def _operands(e: Expr) -> Sequence[Expr]:
    """Return the operands of an expression, without the indices of loads."""
    return () if compat.is_load(e) else compat.operands(e)


def _check_operand(tensor: Tensor, axes: Axes, product: Tensor) -> None:
    if tensor.dtype not in DTYPES:
        raise Refusal(f"{tensor.name} is of {tensor.dtype}, which no epilogue reads")
    refusal = Refusal(f"{tensor.name} has other axes than the convolution's result")
    if len(axes) != len(tensor.shape):
        raise refusal
    for extent, at in zip(tensor.shape, axes):
        if not (is_number(extent, 1) if at is None else same(extent, product.shape[at])):
            raise refusal
    used = [at for at in axes if at is not None]
    if used != sorted(set(used)):
        raise refusal


class TileEvaluator:
    """Emits an epilogue for neighbouring positions of a channel.

    Args:
        epilogue: the epilogue.
        buffers: flat buffers of its operands and results, in order.
        lanes: positions that are evaluated at once.
        choices: the constants of choice of the device.
    """

    def __init__(self, epilogue: Epilogue, buffers: Sequence[Buffer], lanes: int, choices: Choices):
        self.epilogue, self.lanes = epilogue, lanes
        count = len(epilogue.operands)
        self.operands = {tensor: buffer for (tensor, _), buffer in zip(epilogue.operands, buffers)}
        self.outputs = list(zip(epilogue.graph.outputs, buffers[count:]))
        self.binder = B.Binder(choices.bound_weight)
        self.known: dict[tuple[Operator, Axes], Expr] = {}
        self.leaf: dict[Tensor, Expr] = {}
        self.held: dict[Tensor, Buffer] = {}

    def hold(self, positions: LastAxis, moving: int) -> None:
        """Emit loads of the operands without the axis ``moving``, along which calls of :meth:`emit` follow.

        Otherwise each of these would load the same elements.
        """
        for tensor, axes in self.epilogue.operands:
            if moving not in axes:
                lanes = self.lanes if positions.differ(axes) else 1
                source, start = self.operands[tensor], positions.first(axes)
                self.held[tensor] = self._tile(source, start, f"{tensor.name[:16]}_in", lanes)

    def emit(self, sums: Buffer, start: Expr, positions: Positions | LastAxis) -> None:
        """Emit the evaluation and the stores.

        Args:
            sums: buffer of the convolution's results.
            start: position of the first lane's result in it.
            positions: coordinates of the lanes in other tensors.
        """
        whole: Axes = tuple(range(self.epilogue.rank))
        self.known, self.leaf = {}, {}
        tiles = {self.epilogue.product: self._tile(sums, start, "sums", self.lanes)}
        for tensor, axes in self.epilogue.operands:
            buffer = self.operands[tensor]
            if not positions.differ(axes):
                held = self.held.get(tensor)
                value = B.fetch(buffer, positions.first(axes)) if held is None else B.fetch(held, 0)
                self.leaf[tensor] = _widened(value, tensor)
            elif tensor in self.held:
                tiles[tensor] = self.held[tensor]
            elif positions.are_neighbours(axes):
                tiles[tensor] = self._tile(
                    buffer, positions.first(axes), f"{tensor.name[:16]}_in", self.lanes
                )
        results = [B.local([self.lanes], t.dtype, f"{t.name[:16]}_out") for t, _ in self.outputs]
        for op, axes in _points(self.epilogue.graph, whole):
            if not positions.differ(axes):
                self._value(op, axes)  # the same for all lanes
        of_all = dict(self.known)
        with B.loop("unroll", self.lanes, "lane") as lane:
            self.known = dict(of_all)
            for tensor, tile in tiles.items():
                self.leaf[tensor] = _widened(B.fetch(tile, lane), tensor)
            for tensor, axes in self.epilogue.operands:
                if positions.differ(axes) and tensor not in tiles:
                    value = B.cell(B.fetch(self.operands[tensor], positions.at(axes, lane)), "line_in")
                    self.leaf[tensor] = _widened(value, tensor)
            for (tensor, _), result in zip(self.outputs, results):
                assert tensor.producer is not None
                B.store(result, convert(self._value(tensor.producer, whole), tensor.dtype), [lane])
        for (tensor, flat), result in zip(self.outputs, results):
            with B.loop(_loop_of(tensor.dtype), self.lanes, "v") as v:
                B.store(flat, B.fetch(result, v), [positions.first(whole) + v])

    @staticmethod
    def _tile(source: Buffer, start: Expr, name: str, lanes: int) -> Buffer:
        """Return the elements of lanes from position ``start`` on, in registers."""
        dtype = compat.buffer_dtype(source)
        tile = B.local([lanes], dtype, name)
        with B.loop(_loop_of(dtype), lanes, "v") as v:
            B.store(tile, B.fetch(source, start + v), [v])
        return tile

    def _value(self, op: Operator, axes: Axes) -> Expr:
        """Return the value of an operator at some axes of the element, bound on first use."""
        if (op, axes) not in self.known:
            accesses = iter(op.accesses)

            def visit(e: Expr) -> Expr:
                if compat.is_load(e):
                    access = next(accesses)
                    producer = access.tensor.producer
                    if producer is None:
                        return self.leaf[access.tensor]
                    return self._value(producer, _axes_of(access, op, axes))
                hidden = hidden_negation(e, visit)
                return widen(e, visit, DEVICE) if hidden is None else hidden

            self.known[op, axes] = self.binder.bind(visit(op.value), short_name(op))
        return self.known[op, axes]


def _loop_of(dtype: str) -> str:
    """Return the kind of loop over neighbours of an element type."""
    return "vectorized" if dtype in VECTORS else "unroll"


def _widened(value: Expr, tensor: Tensor) -> Expr:
    return convert(value, compute_dtype(tensor.dtype))
