# SPDX-License-Identifier: Apache-2.0
"""Align a graph's operators with one row domain: the locality check of in-block stitching (AStitch 4.2, 4.3).

From the reductions and outputs, points are propagated backwards through every access. Element-wise operators can be
evaluated anywhere. A reduction's result is available in its own row only, so every access to one must land there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ... import compat
from ...compat import Buffer, has_load
from ...cost.choices import Choices
from ...graph.extent import Extent, is_number, product, quotient, same, text_of, unflatten
from ...graph.ir import Access, Operator, StitchGraph, Tensor
from .. import dominants
from .bounds.index_length import too_long
from .bounds.inlined import InlinedSizes
from .bounds.recomputed import Recomputed
from .domain import At, Domain, Point
from .gather import GatherPoints, Misaligned
from .index_space import IndexSpaces
from .result_rows import along_results

Key = tuple[Operator, Point]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The points at which operators are evaluated.

    ``roots`` lists the reductions and outputs with their points. ``reads`` gives, for each evaluated operator, the
    point of each of its accesses (None for a gather's data, which is indexed by values). ``cross_row`` are the
    reductions across rows. Their results are known only when every row is done, so nothing here reads them.
    ``stand_ins`` are the buffers that points read for inputs that hold indices. ``dominant`` is the operator that the
    domain's rows come from, None if they were given.
    """

    graph: StitchGraph
    domain: Domain
    roots: Sequence[Key]
    reads: Mapping[Key, Sequence[Point | None]]
    level: Mapping[Key, int]
    cross_row: frozenset[Operator]
    stand_ins: Mapping[Tensor, Buffer]
    choices: Choices
    dominant: Operator | None = None

    @property
    def row_point(self) -> Point:
        """The point of a reduction's result."""
        return self.domain.row_point

    def children(self, key: Key) -> list[tuple[Access, Point | None]]:
        """Return the accesses of an evaluated operator with their points."""
        return list(zip(key[0].accesses, self.reads[key]))


def align(
    graph: StitchGraph,
    choices: Choices,
    domain: Domain | None = None,
    cross_row: Collection[Operator] = (),
    pinned: Collection[Tensor] = (),
    spaces: IndexSpaces | None = None,
    preferred: Collection[str] = (),
) -> Alignment:
    """Propagate a mapping through a graph: from one of its dominants, or over a domain that is given.

    ``cross_row`` names reductions that run across the rows instead of along them: one result a column, or one in all.
    ``pinned`` are inputs of which only the elements at the current row and column are available. ``spaces`` cache
    results about accesses if many graphs of the same operators are aligned. ``preferred`` names operators to choose
    as dominants.

    Raises:
        Misaligned: when there is none (rows differ, an access to another row's reduction...).
    """
    for t in graph.touched():
        if any(is_number(s, 0) for s in t.shape):
            raise Misaligned(f"{t.name} has no elements")
    reasons: list[str] = []
    for dominant, rows in [(None, domain)] if domain is not None else row_domains(graph, spaces, preferred):
        try:
            aligned = _Aligner(graph, choices, rows, frozenset(cross_row), frozenset(pinned)).run()
            return replace(aligned, dominant=dominant)
        except Misaligned as err:
            reasons.append(str(err))
    raise Misaligned(reasons[0] if reasons else "no output")


def row_domains(
    graph: StitchGraph, spaces: IndexSpaces | None = None, preferred: Collection[str] = ()
) -> list[tuple[Operator | None, Domain]]:
    """Return the domains worth trying for all of a graph, best first, each with the dominant that asks for it.

    Raises:
        Misaligned: when reductions have different rows, so that no domain serves all of them.
    """
    spaces = spaces or IndexSpaces()
    domains = []
    for lead in dominants.leads(graph, preferred):
        rows = Domain(lead.rows, lead.flat, given=spaces.of(lead.rows, lead.flat))
        domains.append((lead.dominant, rows))
    if graph.reduces:
        first, domain = domains[-1]
        for op in graph.reduces:
            if first is not None and not same(op.output.size, domain.rows, domain.analyzer):
                raise Misaligned(
                    f"reductions {first.name} and {op.name} have {text_of(domain.rows)} and "
                    f"{text_of(op.output.size)} rows"
                )
    return domains


class _Aligner:
    def __init__(
        self,
        graph: StitchGraph,
        choices: Choices,
        domain: Domain,
        cross_row: frozenset[Operator],
        pinned: frozenset[Tensor],
    ):
        self.graph, self.choices, self.domain, self.pinned = graph, choices, domain, pinned
        self.cross_row, self.row_point = cross_row, domain.row_point
        self.roots: list[Key] = []
        self.reads: dict[Key, list[Point | None]] = {}
        self.level: dict[Key, int] = {}
        self.own = set(graph.operators)
        symbolic = any(not isinstance(e, int) for t in graph.touched() for e in t.shape)
        self.has_symbols = symbolic or bool(graph.symbols)  # which an index may be divided by
        self.budget = 6 * len(graph.operators) + 64
        self.recomputed = Recomputed(domain, graph.operators, choices)
        self.inlined = InlinedSizes(choices.inlined_operators)
        self.placed: dict[Operator, Point] = {}
        self.gathered = GatherPoints(domain)

    def run(self) -> Alignment:
        roots_of_graph = list(dominants.roots(self.graph))
        self._check_sizes(roots_of_graph)
        for op in roots_of_graph:
            if op in self.cross_row:
                self._reduce_across(op)
            elif op.is_reduce:
                self._reduce(op)
        for op in roots_of_graph:  # Outputs come after the reductions, which may evaluate them first.
            if not op.is_reduce:
                self.roots.append((op, self._output(op)))
        order = {op: i for i, op in enumerate(self.graph.operators)}
        roots = sorted(self.roots, key=lambda root: order[root[0]])
        stand_ins = self.gathered.stand_ins
        return Alignment(
            self.graph, self.domain, roots, self.reads, self.level, self.cross_row, stand_ins, self.choices
        )

    def place(self, root: Operator, operators: Collection[Operator]) -> None:
        """Place an output of a graph of other operators, with the limits of that graph."""
        self.own, self.budget = set(operators), 6 * len(operators) + 64
        self.recomputed.begin(operators)
        self._output(root)

    def add_reduction(self, root: Operator, operators: Collection[Operator]) -> dict[Key, list[Point | None]]:
        """Place a reduction of a graph that has these operators too, and return its reads that are new."""
        self.own |= set(operators)
        self.recomputed.include(operators)
        self.budget += 6 * len(operators)
        known = len(self.reads)
        self._reduce(root)
        return dict(islice(self.reads.items(), known, None))

    def _check_sizes(self, operators: Sequence[Operator]) -> None:
        """Check that the outputs of a flat domain have equal sizes, before any of them is placed.

        Most refusals of merges are of this kind. Placing outputs before it took a third of the time of a Mamba's
        search for scopes.
        """
        sizes = [op.output.size for op in operators if not op.is_reduce] if self.domain.flat else []
        for size in sizes:  # a stage of reductions alone has no outputs
            first = self.graph.outputs[0].size
            if not same(size, first, self.domain.analyzer):
                said = f"outputs of {text_of(first)} and {text_of(size)} elements"
                raise Misaligned(f"{said} without a common row")

    def _reduce(self, op: Operator) -> None:
        if not same(op.output.size, self.domain.rows, self.domain.analyzer):
            raise Misaligned(
                f"reduction {op.name} has {text_of(op.output.size)} results, not {text_of(self.domain.rows)}"
            )
        columns = quotient(op_points(op), self.domain.rows, self.domain.analyzer)
        if columns is None:
            raise Misaligned(f"the points of reduction {op.name} do not divide into {self.domain.rows} rows")
        point = self.domain.full(columns)
        level = self._visit(op, point, root=True)
        self.roots.append((op, point))
        self.placed[op] = self.row_point
        self.level[(op, self.row_point)] = level + 1

    def _reduce_across(self, op: Operator) -> None:
        """Place a reduction across rows: its result's axes along the columns, its reduced axes along the rows."""
        domain, size = self.domain, op.output.size
        if same(size, 1):
            columns = quotient(op_points(op), domain.rows, domain.analyzer)
            if columns is None:
                raise Misaligned(f"the points of {op.name} do not divide into {domain.rows} rows")
            point = self.row_point if is_number(columns, 1) else domain.full(columns)
        else:
            if not same(product([a.extent for a in op.reduce]), domain.rows, domain.analyzer):
                raise Misaligned(f"{op.name} reduces over other rows than the domain's {domain.rows}")
            values = unflatten(domain.column, [a.extent for a in op.spatial])
            values += unflatten(domain.row, [a.extent for a in op.reduce])
            point = Point(At.INDEX, domain.space(size), tuple(values))
        self.level[(op, point)] = self._visit(op, point, root=True)
        self.roots.append((op, point))

    def _output(self, op: Operator) -> Point:
        """Place an output: if a reduction evaluates all of it, along the flat index, or at its producer's point."""
        if op in self.placed:
            return self.placed[op]
        reasons = []
        for point in sorted(self._candidates(op), key=lambda at: (op, at) not in self.level):
            before = dict(self.reads), dict(self.level)
            try:
                self._visit(op, point)
            except Misaligned as err:
                reasons.append(str(err))
                self.reads, self.level = before
                continue
            self.placed[op] = point
            return point
        raise Misaligned(
            reasons[0] if reasons else f"output {op.output!r} does not divide into {self.domain.rows} rows"
        )

    def _candidates(self, op: Operator) -> list[Point]:
        """Return the points at which a reduction or output may be evaluated, the plainest first."""
        size, domain = op.output.size, self.domain
        points: list[Point] = []
        if domain.flat:
            return [domain.full(size)]
        columns = quotient(size, domain.rows, domain.analyzer)
        if columns is not None:
            points.append(self.row_point if is_number(columns, 1) else domain.full(columns))
            points += self._along_producer(op, columns)
            points += [p for p in self._along_reduces(op, columns) if p not in points]
            points += [p for p in along_results(op, columns, domain) if p not in points]
        return points

    def _along_producer(self, op: Operator, columns: Extent) -> list[Point]:
        """Return the points that follow from permuting accesses to producers placed along their own flat index."""
        points = []
        for a in op.accesses:
            producer = a.tensor.producer
            if a.tensor not in self.pinned and (
                producer not in self.own or producer is None or producer.is_reduce
            ):
                continue
            if a.guarded:
                continue
            position = {v: i for i, v in enumerate(a.indices) if compat.kind(v) in ("Var", "SizeVar")}
            if len(position) != len(op.axes) or len(a.indices) != len(op.axes):
                continue
            shape = a.tensor.shape
            own = self.domain.full_values(shape, columns)
            along = [position[axis.var] for axis in op.axes if axis.var in position]
            # A stage of the producer (a slice from 0 on) has other elements at these points, and fewer.
            if len(along) == len(op.axes) and all(
                same(axis.extent, shape[i], self.domain.analyzer) for axis, i in zip(op.axes, along)
            ):
                points.append(Point(At.INDEX, self.domain.space(columns), tuple(own[i] for i in along)))
        return points

    def _along_reduces(self, op: Operator, columns: Extent) -> list[Point]:
        """Return the points at which reductions walk tensors of the output's size.

        An example is a softmax along an axis that is not the last.

        If the shapes differ, the output is treated as a reshape of the tensor: a group norm whose channels are last.
        """
        points = []
        domain, shape = self.domain, op.output.shape
        for reduce, at in self.roots:
            if not reduce.is_reduce or not same(at.columns, columns, domain.analyzer):
                continue
            for access, point in zip(reduce.accesses, self.reads[(reduce, at)]):
                walked = access.tensor.shape
                if point is None or point.at is not At.INDEX or not _permutes(reduce, access):
                    continue  # Otherwise not every element would be visited.
                if len(walked) == len(shape) and all(
                    same(a, b, domain.analyzer) for a, b in zip(walked, shape)
                ):
                    points.append(point)
                elif same(access.tensor.size, op.output.size, domain.analyzer):
                    indices = domain.reshaper.reshape(point.indices, walked, shape, columns)
                    points.append(Point(At.INDEX, domain.space(columns), tuple(indices)))
        return points

    def _visit(self, op: Operator, point: Point, root: bool = False) -> int:
        """Evaluate ``op`` at ``point``: record the points of its reads, and return its level (reductions below it)."""
        key = (op, point)
        if key in self.level and not root:
            return self.level[key]
        if op.is_reduce and not root:
            if point != self.row_point or op in self.cross_row:
                raise Misaligned(f"reduction {op.name} is read at {point}, outside its own row")
            return self.level[key]
        self.budget -= 1
        if self.budget < 0:
            raise Misaligned("operators are read at too many different points")
        self.recomputed.add(op, point, root)
        level = 0
        reads: list[Point | None] = []
        for a in op.accesses:
            gathered = any(has_load(i) for i in a.indices)
            if gathered and a.tensor.producer not in self.own:
                reads.append(None)
                continue
            child = self.gathered.point(op, point, a) if gathered else self.domain.move(op, point, a)
            if self.has_symbols and any(too_long(index, self.choices) for index in child.indices):
                raise Misaligned(
                    f"the index at which {op.name} reads {a.tensor.name} has too many divisions by symbols"
                )
            if a.tensor in self.pinned and (a.guarded or child != self.domain.full(child.columns)):
                raise Misaligned(f"{op.name} reads {a.tensor.name} at other points")
            reads.append(child)
            if a.tensor.producer is not None and a.tensor.producer in self.own:
                level = max(level, self._visit(a.tensor.producer, child))
        self.inlined.add(op, point, reads)
        self.reads[key] = reads
        if not root:
            self.level[key] = level
        return level


class OneByOne:
    """Places the outputs of one flat domain, or the reductions of one domain of rows, one after the other.

    Operators that an earlier one has evaluated at a point are not visited again. So the time for all steps of a scan,
    or for all sums of a product, grows with their number, not with its square.
    """

    def __init__(self, domain: Domain, choices: Choices):
        self.domain = domain
        self._aligner = _Aligner(StitchGraph("stage", [], [], []), choices, domain, frozenset(), frozenset())

    def place(self, root: Operator, operators: Collection[Operator]) -> None:
        """Evaluate an element-wise root.

        Args:
            root: an operator of static extents.
            operators: the root, and the element-wise operators that are computed for it in the stage.

        Raises:
            Misaligned: if it cannot be evaluated.
        """
        self._aligner.place(root, operators)

    def add_reduction(self, root: Operator, operators: Collection[Operator]) -> dict[Key, list[Point | None]]:
        """Evaluate a reduction of rows next to the earlier ones, and return the reads that are new.

        Args:
            root: a reduction of static extents.
            operators: the reduction, and the element-wise operators that are computed for it in the stage.

        Raises:
            Misaligned: if it cannot be evaluated. No reduction can be added afterwards.
        """
        return self._aligner.add_reduction(root, operators)


def _permutes(op: Operator, access: Access) -> bool:
    """Return whether an access of a tensor as large as the iteration space reads each element once."""
    live = {a.var for a in op.axes if not same(a.extent, 1)}
    read = [i for i in access.indices if compat.int_value(i) != 0]
    return all(compat.kind(i) in ("Var", "SizeVar") for i in read) and live <= set(read)


def op_points(op: Operator) -> Extent:
    """Return the number of points of an operator's iteration space."""
    return product(op.extents)
