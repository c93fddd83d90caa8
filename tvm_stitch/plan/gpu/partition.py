# SPDX-License-Identifier: Apache-2.0
"""Partition a stitch op into phases of parts: the Global scheme, chosen edge by edge (AStitch 4.2, 4.3).

Reductions and outputs are placed one by one, producers first. Each joins the part that holds the row values it reads,
if that part's rows serve it as well (the passive locality check: Regional); else those values become global, and it
goes into a part of a later phase. Reductions across a part's rows (*folds*) are accumulated block by block; the partial
results are global values, and the rest of the reduction belongs to the next phase.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ... import compat
from ...graph.dtype import compute_dtype
from ...graph.extent import Extent, as_extent, product
from ...graph.ir import Operator, StitchGraph, Tensor
from .. import heuristics
from ..iteration.alignment import Alignment, Misaligned, align, op_points
from ..iteration.domain import At, Domain, Point
from ..slices import Cut, Slice, aligned_slice, final_reduce, partial_tensor, slice_graph, slice_operators


@dataclass(frozen=True)
class Partition:
    """Phases of parts, and what crosses between them.

    ``partials`` maps each fold to the tensor of its partial results, one a block (the last dimension); ``scalars``
    are the folds with one result, which every block finishes for itself; ``stored`` are the global tensors that are
    written as they are, ``shared`` those that every block has in its shared memory, with the phase of their parts.
    """

    graph: StitchGraph
    blocks: int
    phases: Sequence[Sequence[Slice]]
    partials: Mapping[Operator, Tensor]
    scalars: Mapping[Operator, int]
    stored: Mapping[Tensor, int]
    shared: Mapping[Tensor, int]
    cut: Cut


def partition(graph: StitchGraph, blocks: int, replicate: bool = True) -> Partition:
    """Partition a graph for a grid of ``blocks`` blocks.

    Args:
        graph: a stitch op's graph.
        blocks: how many blocks share the work.
        replicate: let every block evaluate small parts whole, which saves a barrier; their results do not outlive a
            kernel.

    Raises:
        Misaligned: when it has symbolic extents or takes more phases or parts than a kernel should have.
    """
    for t in graph.tensors():
        if not all(isinstance(e, int) and e > 0 for e in t.shape):
            raise Misaligned(f"{t.name} has a symbolic or empty shape, which a grid-wide plan does not serve")
    return _Partitioner(graph, blocks, replicate).run()


class Orientation(enum.Enum):
    """How a reduction lies in memory."""

    ROW = "along the innermost axis of what it reads"
    COLUMN = "across it"
    ALL = "to one result"


def orientation(op: Operator) -> Orientation:
    """Along the innermost axis of what it reads (``ROW``), across it (``COLUMN``), or to one result (``ALL``)."""
    if op.output.size == 1:
        return Orientation.ALL
    reduced = {a.var for a in op.reduce}
    accesses = sorted(op.accesses, key=lambda a: -int(as_int(a.tensor.size)))
    for access in accesses:
        for index, extent in reversed(list(zip(access.indices, access.tensor.shape))):
            if isinstance(extent, int) and extent == 1:
                continue
            used = compat.free_vars(index)
            if used:
                return Orientation.ROW if used & reduced else Orientation.COLUMN
    return Orientation.ROW


def as_int(extent: Extent) -> int:
    """A static extent's value, 0 for a symbolic one."""
    return extent if isinstance(extent, int) else 0


class _Draft:
    """A part in the making: its roots change while others find their place, and its alignment with them."""

    def __init__(self, made: Slice):
        self.made = made
        self.joining: tuple[Operator, ...] = ()  # roots that the alignment does not have yet
        self.storing: frozenset[Operator] = frozenset()
        self.replicated = False
        self.phase, self.domain = made.phase, made.domain

    @property
    def roots(self) -> tuple[Operator, ...]:
        return (*self.made.roots, *self.joining)

    @property
    def folds(self) -> frozenset[Operator]:
        return self.made.folds

    @property
    def stored(self) -> frozenset[Operator]:
        return self.made.stored | self.storing

    def join(self, root: Operator, stored: bool) -> None:
        """Take in a root that is aligned with the rest later."""
        self.joining = (*self.joining, root)
        if stored:
            self.storing = self.storing | {root}

    def become(self, made: Slice) -> None:
        """Be a part with other roots."""
        self.made, self.joining, self.storing = made, (), frozenset()

    def settle(self, cut: Cut) -> None:
        """Align the roots that joined."""
        if self.joining:
            self.become(self.with_roots(cut, self.roots, self.folds, self.stored))

    def with_roots(
        self, cut: Cut, roots: Sequence[Operator], folds: Collection[Operator], stored: Collection[Operator]
    ) -> Slice:
        """The part with these roots.

        Raises:
            Misaligned: when its domain does not serve them all.
        """
        return aligned_slice(cut, self.phase, self.domain, roots, folds, stored)

    def replicate(self) -> None:
        """Let every block evaluate it."""
        self.replicated = True

    def finished(self, phase: int) -> Slice:
        """The part as it has become, in a phase of this number."""
        return replace(self.made, phase=phase, replicated=self.replicated)


class _Partitioner:
    def __init__(self, graph: StitchGraph, blocks: int, replicate: bool):
        self.graph, self.blocks, self.replicate = graph, blocks, replicate
        self.cut = Cut({op.output: op for op in graph.operators})
        self.parts: list[_Draft] = []
        self.home: dict[Operator, _Draft] = {}
        self.replicated: list[_Draft] = []  # in the order in which they became so: none reads a later one
        self.partials: dict[Operator, Tensor] = {}
        self.scalars: dict[Operator, int] = {}
        self.stored: dict[Tensor, int] = {}
        self.shared: dict[Tensor, int] = {}
        self.outputs = {t.producer for t in graph.outputs}

    def run(self) -> Partition:
        for op in self.graph.operators:
            if op.is_reduce:
                self._reduce(op)
            elif op in self.outputs:
                self._place(op, stored=True)
        drafts: dict[int, list[_Draft]] = {}
        for part in self.parts:
            part.settle(self.cut)
            drafts.setdefault(part.phase, []).append(part)
        used = sorted(drafts)
        number = {f: i for i, f in enumerate(used)}

        def after(f: int) -> int:
            return next((number[g] for g in used if g >= f), len(used))

        turn = {part: i for i, part in enumerate(self.replicated)}
        phases = [
            [p.finished(number[f]) for p in sorted(drafts[f], key=lambda p: turn.get(p, len(turn)))]
            for f in used
        ]
        outputs = self.graph.outputs
        if any(op.output in outputs and f + 1 > used[-1] for op, f in self.scalars.items()):
            phases.append([])  # in which a result is finished and written
        return Partition(
            self.graph,
            self.blocks,
            phases,
            self.partials,
            {op: number[f] for op, f in self.scalars.items()},
            {t: number[f] for t, f in self.stored.items()},
            {t: number[f] for t, f in self.shared.items()},
            Cut(self.cut.producer, {t: after(f) for t, f in self.cut.ready.items()}),
        )

    # -- reductions ---------------------------------------------------------------------------------------------
    def _reduce(self, op: Operator) -> None:
        lies = orientation(op)
        if lies is Orientation.ROW or (lies is Orientation.COLUMN and has_many_results(op, self.blocks)):
            self._place(op, stored=op in self.outputs)
            return
        part = self._place(op, fold=True)
        dtype = _carried(compute_dtype(op.output.dtype))
        partial = partial_tensor(op, self.blocks, dtype)
        self.partials[op] = partial
        self.cut.ready[partial] = part.phase + 1
        if lies is Orientation.ALL:
            self.cut.ready[op.output] = part.phase + 1
            self.scalars[op] = part.phase
            return
        final = final_reduce(op, partial)
        self.cut.producer[op.output] = final
        self._place(final, stored=op in self.outputs)

    # -- placing ------------------------------------------------------------------------------------------------
    def _place(self, root: Operator, fold: bool = False, stored: bool = False) -> _Draft:
        while True:
            part = self._finishing(root)
            if part is not None and not fold and self._join(part, root, fold, stored):
                return part
            sources = self._sources(root)
            phase = self._earliest(root)
            homes = {self.home[s] for s in sources}
            tried = list(homes) if len(homes) == 1 else []
            if not homes:
                tried = list(self._neighbours(root, phase, fold))
            for part in tried:
                if part.phase >= phase and self._join(part, root, fold, stored):
                    return part
            if not sources:
                return self._open(root, phase, fold, stored)
            self._make_global(root)

    def _finishing(self, root: Operator) -> _Draft | None:
        """The part whose stored row values the root only carries on, row by row: it belongs there, a phase earlier."""
        if root.is_reduce:
            return None
        reads = {t for op in slice_operators(self.cut, [root], heuristics.MOST_PHASES) for t in op.inputs}
        for t in reads:
            producer = self.cut.producer.get(t)
            if (
                producer is None
                or t not in self.stored
                or root.output.size != self.home[producer].domain.rows
            ):
                continue
            part = self.home[producer]
            needed = slice_operators(self.cut, [root], part.phase)
            if all(op in part.roots for op in needed if op.is_reduce):
                return part
        return None

    def _sources(self, root: Operator) -> list[Operator]:
        """The reductions placed in parts, and not global, whose results the root reads."""
        found: dict[Operator, None] = {}
        seen: set[Operator] = set()

        def visit(op: Operator) -> None:
            for t in op.inputs:
                producer = self.cut.producer.get(t)
                if producer is None or t in self.cut.ready or producer in seen:
                    continue
                seen.add(producer)
                if producer in self.home and producer.is_reduce:
                    found[producer] = None
                else:
                    visit(producer)

        visit(root)
        return list(found)

    def _earliest(self, root: Operator) -> int:
        """The first phase in which all global values that the root reads are there."""
        phase = 0
        for op in slice_operators(self.cut, [root], heuristics.MOST_PHASES):
            phase = max([phase, *(self.cut.ready.get(t, 0) for t in op.inputs)])
        return phase

    def _neighbours(self, root: Operator, phase: int, fold: bool) -> Iterator[_Draft]:
        """Parts worth trying: those that read what the root reads; their rows must fit."""
        inputs = self._leaves([root], phase)
        tried = 0
        for part in sorted(self.parts, key=lambda p: p.phase):
            if part.phase < phase or tried >= heuristics.PARTS_TRIED or not self._fits(part, root, fold):
                continue
            shared = inputs & self._leaves(part.roots, part.phase)
            size = max((as_int(t.size) for t in inputs), default=0)
            if part.phase == phase and (
                any(2 * as_int(t.size) >= size for t in shared) or self._alike(part, root)
            ):
                tried += 1
                yield part

    def _leaves(self, roots: Sequence[Operator], phase: int) -> set[Tensor]:
        operators = slice_operators(self.cut, roots, phase)
        made = {op.output for op in operators}
        return {t for op in operators for t in op.inputs if t not in made}

    @staticmethod
    def _fits(part: _Draft, root: Operator, fold: bool) -> bool:
        rows = as_int(part.domain.rows)
        if fold:
            size = as_int(root.output.size)
            if size == 1:
                return as_int(op_points(root)) % rows == 0
            return as_int(product(a.extent for a in root.reduce)) == rows and not part.domain.flat
        if root.is_reduce:
            return as_int(root.output.size) == rows and not part.domain.flat
        if part.domain.flat and part.stored:  # what a flat part stores is walked by one index
            return as_int(root.output.size) == as_int(next(iter(part.stored)).output.size)
        return as_int(root.output.size) % rows == 0

    @staticmethod
    def _alike(part: _Draft, root: Operator) -> bool:
        """Roots of the same size in a part of no other kind: one loop instead of two."""
        return all(r.output.size == root.output.size and r.is_reduce == root.is_reduce for r in part.roots)

    def _join(self, part: _Draft, root: Operator, fold: bool, stored: bool) -> bool:
        roots = part.roots if root in part.roots else (*part.roots, root)
        folds = part.folds | {root} if fold else part.folds
        kept = part.stored | {root} if stored else part.stored
        if part.replicated and root not in part.roots:
            return False
        if not fold and self._is_element_wise(part, root):
            return self._join_alone(part, root, stored)
        part.settle(self.cut)
        try:
            made = part.with_roots(self.cut, roots, folds, kept)
            if is_strided(made.alignment) and not is_strided(part.made.alignment):
                raise Misaligned("its rows lie across memory")
        except Misaligned:
            return False
        part.become(made)
        self.home[root] = part
        return True

    def _is_element_wise(self, part: _Draft, root: Operator) -> bool:
        """Are the part and the root without reductions, so that no root's place depends on another one?"""
        if not part.domain.flat or root in part.roots:
            return False
        needed = slice_operators(self.cut, [root], part.phase)
        return not any(op.is_reduce for op in (*needed, *part.roots))

    def _join_alone(self, part: _Draft, root: Operator, stored: bool) -> bool:
        """Join where the root can be aligned by itself; the part's alignment follows when all have joined.

        To align the whole part for each of many results takes time that grows with their square.
        """
        try:
            graph = slice_graph(self.cut, [root], {root}, part.phase, "root")[0]
            align(graph, part.domain)
        except Misaligned:
            return False
        part.join(root, stored)
        self.home[root] = part
        return True

    def _open(self, root: Operator, phase: int, fold: bool, stored: bool) -> _Draft:
        if phase >= heuristics.MOST_PHASES:
            raise Misaligned(f"{root.name} would be in phase {phase + 1} of at most {heuristics.MOST_PHASES}")
        if len(self.parts) >= heuristics.MOST_PARTS:
            raise Misaligned(f"more than {heuristics.MOST_PARTS} parts with rows of their own")
        reasons = []
        for domain in self._domains(root, phase, fold):
            try:
                made = aligned_slice(
                    self.cut, phase, domain, [root], [root] if fold else [], [root] if stored else []
                )
            except Misaligned as err:
                reasons.append(str(err))
                continue
            part = _Draft(made)
            self.parts.append(part)
            self.home[root] = part
            self._absorb(part)
            return part
        raise Misaligned(reasons[0] if reasons else f"no domain for {root.name}")

    def _domains(self, root: Operator, phase: int, fold: bool) -> list[Domain]:
        if fold and as_int(root.output.size) > 1:
            return [Domain(product(a.extent for a in root.reduce))]
        if root.is_reduce and not fold:
            return [Domain(root.output.size)]
        if fold:
            return [Domain(1, flat=True)]
        from ..iteration.alignment import _candidates

        return _candidates(slice_graph(self.cut, [root], {root}, phase, "root")[0])

    def _absorb(self, part: _Draft) -> None:
        """Move folds to one result from flat parts that read the same data into a new part with rows."""
        if part.domain.flat:
            return
        inputs = self._leaves(part.roots, part.phase)
        for other in [p for p in self.parts if p is not part and p.phase == part.phase and p.domain.flat]:
            leaves = self._leaves(other.roots, other.phase)
            if not (other.folds and leaves & inputs) or any(r not in other.folds for r in other.roots):
                continue
            before = part.made
            if all(self._fits(part, r, True) and self._join(part, r, True, False) for r in other.roots):
                self.parts.remove(other)
            else:
                part.become(before)
                self.home |= dict.fromkeys(other.roots, other)

    # -- global values ------------------------------------------------------------------------------------------
    def _make_global(self, root: Operator) -> None:
        """Store the row values that the root reads: the last ones of row size on the way to it, or the reductions."""
        seen: set[Operator] = set()

        def visit(op: Operator) -> None:
            for t in op.inputs:
                producer = self.cut.producer.get(t)
                if producer is None or t in self.cut.ready or producer in seen:
                    continue
                seen.add(producer)
                if producer in self.home and producer.is_reduce:
                    self._store(producer, self.home[producer])
                    continue
                homes = {self.home[s] for s in self._sources(producer)}
                if len(homes) == 1:
                    (part,) = homes
                    if t.size == part.domain.rows and self._earliest(producer) <= part.phase:
                        if self._join(part, producer, False, True):
                            self._store(producer, part)
                            continue
                visit(producer)

        visit(root)

    def _store(self, op: Operator, part: _Draft) -> None:
        if not self._join(part, op, False, True):
            raise Misaligned(f"{op.name} cannot be stored where it is computed")
        if self._is_small(part):
            if not part.replicated:
                part.replicate()
                self.replicated.append(part)
            self.cut.ready[op.output] = self.shared[op.output] = part.phase
            return
        self.cut.ready[op.output] = part.phase + 1
        self.stored[op.output] = part.phase

    def _is_small(self, part: _Draft) -> bool:
        """Can every block evaluate the part for itself in about the time of a barrier?"""
        if part.replicated:
            return True
        if not self.replicate or part.domain.flat or part.folds:
            return False
        if any(op.output in self.graph.outputs for op in part.stored):
            return False
        if (
            as_int(part.domain.rows) > heuristics.REPLICATED_ROWS
            or len(self.shared) >= heuristics.REPLICATED_VALUES
        ):
            return False
        if any(op.output in self.stored for op in part.stored):
            return False
        return sum(as_int(op_points(r)) for r in part.roots if r.is_reduce) <= heuristics.REPLICATED_POINTS


def has_many_results(op: Operator, blocks: int) -> bool:
    """A thread for every result keeps the device busy, and neighbouring threads read neighbouring elements."""
    size = as_int(op.output.size)
    return (
        size >= blocks * heuristics.BUSY_RESULTS
        or as_int(op_points(op)) <= heuristics.SCATTERED_ELEMENTS * size
    )


def wants_partition(graph: StitchGraph, blocks: int) -> bool:
    """True when rows would lie across memory, so that sums of columns block by block are better."""
    return any(
        orientation(op) is Orientation.COLUMN and not has_many_results(op, blocks) for op in graph.reduces
    )


def _carried(dtype: str) -> str:
    """The dtype of partial results in device memory."""
    return "int32" if dtype in ("bool", "int8", "int16", "uint8", "uint16") else dtype


def is_strided(alignment: Alignment) -> bool:
    """True when large inputs are read across memory: neighbouring columns of a row are not neighbours there."""
    domain = alignment.domain
    if domain.flat:
        return False
    for key, reads in alignment.reads.items():
        for access, point in zip(key[0].accesses, reads):
            if point is None or point.at is not At.INDEX or not point.per_column:
                continue
            size, points = as_int(access.tensor.size), as_int(product([domain.rows, point.columns]))
            if size * 2 > points and _across(domain, access.tensor, point):
                return True
    return False


def _across(domain: Domain, tensor: Tensor, point: Point) -> bool:
    for index, extent in reversed(list(zip(point.indices, tensor.shape))):
        if as_extent(extent) == 1:
            continue
        used = compat.free_vars(index)
        if used:
            return domain.column not in used
    return False
