# SPDX-License-Identifier: Apache-2.0
"""Partition a stitch op into phases of parts: the Global scheme, chosen edge by edge (AStitch 4.2, 4.3).

Reductions and outputs are placed one by one, producers first. Each joins the part that holds the row values it reads,
if that part's rows serve it as well (the passive locality check: Regional); else those values become global, and it
goes into a part of a later phase. Reductions across a part's rows (*folds*) are accumulated block by block; the partial
results are global values, and the rest of the reduction belongs to the next phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import compat
from ..graph.dtype import compute_dtype
from ..graph.extent import Extent, as_extent, product
from ..graph.ir import Operator, StitchGraph, Tensor
from . import heuristics
from .alignment import Alignment, Misaligned, align, op_points
from .domain import At, Domain, Point
from .parts import Cut, Part, align_part, final_reduce, partial_tensor, slice_graph, slice_operators


@dataclass
class Partition:
    """Phases of parts, and what crosses between them.

    ``partials`` maps each fold to the tensor of its partial results, one a block (the last dimension); ``scalars``
    are the folds with one result, which every block finishes for itself; ``stored`` are the global tensors that are
    written as they are, ``shared`` those that every block has in its shared memory, with the phase of their parts.
    """

    graph: StitchGraph
    blocks: int
    phases: list[list[Part]]
    partials: dict[Operator, Tensor] = field(default_factory=dict)
    scalars: dict[Operator, int] = field(default_factory=dict)
    stored: dict[Tensor, int] = field(default_factory=dict)
    shared: dict[Tensor, int] = field(default_factory=dict)
    cut: Cut = field(default_factory=lambda: Cut({}))


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


class Orientation:
    """How a reduction lies in memory."""

    ROW, COLUMN, ALL = "row", "column", "all"


def orientation(op: Operator) -> str:
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


class _Partitioner:
    def __init__(self, graph: StitchGraph, blocks: int, replicate: bool):
        self.graph, self.blocks, self.replicate = graph, blocks, replicate
        self.cut = Cut({op.output: op for op in graph.operators})
        self.parts: list[Part] = []
        self.home: dict[Operator, Part] = {}
        self.replicated: list[Part] = []  # in the order in which they became so: none reads a later one
        self.result = Partition(graph, blocks, [])
        self.outputs = {t.producer for t in graph.outputs}
        self.pending: set[Part] = set()  # that have roots their alignment does not have yet

    def run(self) -> Partition:
        for op in self.graph.operators:
            if op.is_reduce:
                self._reduce(op)
            elif op in self.outputs:
                self._place(op, stored=True)
        phases: dict[int, list[Part]] = {}
        for part in self.parts:
            self._align_pending(part)
            phases.setdefault(part.phase, []).append(part)
        turn = {part: i for i, part in enumerate(self.replicated)}
        for parts in phases.values():
            parts.sort(key=lambda p: turn.get(p, len(turn)))
        self.result.phases = [phases[f] for f in sorted(phases)]
        if any(
            op.output in self.graph.outputs and f + 1 > max(phases) for op, f in self.result.scalars.items()
        ):
            self.result.phases.append([])  # in which a result is finished and written
        if sorted(phases) != list(range(len(phases))):
            self._renumber(sorted(phases))
        self.result.cut = self.cut
        return self.result

    def _renumber(self, used: list[int]) -> None:
        number = {f: i for i, f in enumerate(used)}
        for part in self.parts:
            part.phase = number[part.phase]

        def after(f: int) -> int:
            return next((number[g] for g in used if g >= f), len(used))

        self.cut.ready = {t: after(f) for t, f in self.cut.ready.items()}
        self.result.scalars = {op: number[f] for op, f in self.result.scalars.items()}
        self.result.stored = {t: number[f] for t, f in self.result.stored.items()}
        self.result.shared = {t: number[f] for t, f in self.result.shared.items()}

    # -- reductions ---------------------------------------------------------------------------------------------
    def _reduce(self, op: Operator) -> None:
        lies = orientation(op)
        if lies == Orientation.ROW or (lies == Orientation.COLUMN and has_many_results(op, self.blocks)):
            self._place(op, stored=op in self.outputs)
            return
        part = self._place(op, fold=True)
        dtype = _carried(compute_dtype(op.output.dtype))
        partial = partial_tensor(op, self.blocks, dtype)
        self.result.partials[op] = partial
        self.cut.ready[partial] = part.phase + 1
        if lies == Orientation.ALL:
            self.cut.ready[op.output] = part.phase + 1
            self.result.scalars[op] = part.phase
            return
        final = final_reduce(op, partial)
        self.cut.producer[op.output] = final
        self._place(final, stored=op in self.outputs)

    # -- placing ------------------------------------------------------------------------------------------------
    def _place(self, root: Operator, fold: bool = False, stored: bool = False) -> Part:
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

    def _finishing(self, root: Operator) -> Part | None:
        """The part whose stored row values the root only carries on, row by row: it belongs there, a phase earlier."""
        if root.is_reduce:
            return None
        reads = {t for op in slice_operators(self.cut, [root], heuristics.MOST_PHASES) for t in op.inputs}
        for t in reads:
            producer = self.cut.producer.get(t)
            if (
                producer is None
                or t not in self.result.stored
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

    def _neighbours(self, root: Operator, phase: int, fold: bool) -> Iterator[Part]:
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

    def _leaves(self, roots: list[Operator], phase: int) -> set[Tensor]:
        operators = slice_operators(self.cut, roots, phase)
        made = {op.output for op in operators}
        return {t for op in operators for t in op.inputs if t not in made}

    @staticmethod
    def _fits(part: Part, root: Operator, fold: bool) -> bool:
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
    def _alike(part: Part, root: Operator) -> bool:
        """Roots of the same size in a part of no other kind: one loop instead of two."""
        return all(r.output.size == root.output.size and r.is_reduce == root.is_reduce for r in part.roots)

    def _join(self, part: Part, root: Operator, fold: bool, stored: bool) -> bool:
        roots = part.roots if root in part.roots else [*part.roots, root]
        folds = part.folds | {root} if fold else part.folds
        kept = part.stored | {root} if stored else part.stored
        if part.replicated and root not in part.roots:
            return False
        if not fold and self._is_element_wise(part, root):
            return self._join_alone(part, root, stored)
        self._align_pending(part)
        before = self._state(part)
        aligned = part.alignment
        try:
            align_part(self.cut, part, roots, folds, kept)
            assert part.alignment is not None
            if aligned is not None and is_strided(part.alignment) and not is_strided(aligned):
                raise Misaligned("its rows lie across memory")
        except Misaligned:
            self._restore(part, before)
            return False
        self.home[root] = part
        return True

    def _is_element_wise(self, part: Part, root: Operator) -> bool:
        """Are the part and the root without reductions, so that no root's place depends on another one?"""
        if not part.domain.flat or part.alignment is None or root in part.roots:
            return False
        needed = slice_operators(self.cut, [root], part.phase)
        return not any(op.is_reduce for op in (*needed, *part.roots))

    def _join_alone(self, part: Part, root: Operator, stored: bool) -> bool:
        """Join where the root can be aligned by itself; the part's alignment follows when all have joined.

        To align the whole part for each of many results takes time that grows with their square.
        """
        try:
            graph = slice_graph(self.cut, [root], {root}, part.phase, "root")[0]
            align(graph, part.domain)
        except Misaligned:
            return False
        part.roots = [*part.roots, root]
        part.stored = part.stored | {root} if stored else part.stored
        self.pending.add(part)
        self.home[root] = part
        return True

    def _align_pending(self, part: Part) -> None:
        if part in self.pending:
            self.pending.remove(part)
            align_part(self.cut, part, part.roots, part.folds, part.stored)

    @staticmethod
    def _state(part: Part) -> dict[str, Any]:
        return dict(vars(part))

    @staticmethod
    def _restore(part: Part, state: dict[str, Any]) -> None:
        vars(part).update(state)

    def _open(self, root: Operator, phase: int, fold: bool, stored: bool) -> Part:
        if phase >= heuristics.MOST_PHASES:
            raise Misaligned(f"{root.name} would be in phase {phase + 1} of at most {heuristics.MOST_PHASES}")
        if len(self.parts) >= heuristics.MOST_PARTS:
            raise Misaligned(f"more than {heuristics.MOST_PARTS} parts with rows of their own")
        reasons = []
        for domain in self._domains(root, phase, fold):
            part = Part(phase, domain)
            try:
                align_part(self.cut, part, [root], {root} if fold else set(), {root} if stored else set())
            except Misaligned as err:
                reasons.append(str(err))
                continue
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
        from .alignment import _candidates

        return _candidates(slice_graph(self.cut, [root], {root}, phase, "root")[0])

    def _absorb(self, part: Part) -> None:
        """Move folds to one result from flat parts that read the same data into a new part with rows."""
        if part.domain.flat:
            return
        inputs = self._leaves(part.roots, part.phase)
        for other in [p for p in self.parts if p is not part and p.phase == part.phase and p.domain.flat]:
            leaves = self._leaves(other.roots, other.phase)
            if not (other.folds and leaves & inputs) or any(r not in other.folds for r in other.roots):
                continue
            before = self._state(part)
            if all(self._fits(part, r, True) and self._join(part, r, True, False) for r in other.roots):
                self.parts.remove(other)
            else:
                self._restore(part, before)
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

    def _store(self, op: Operator, part: Part) -> None:
        if not self._join(part, op, False, True):
            raise Misaligned(f"{op.name} cannot be stored where it is computed")
        if self._is_small(part):
            if not part.replicated:
                part.replicated = True
                self.replicated.append(part)
            self.cut.ready[op.output] = self.result.shared[op.output] = part.phase
            return
        self.cut.ready[op.output] = part.phase + 1
        self.result.stored[op.output] = part.phase

    def _is_small(self, part: Part) -> bool:
        """Can every block evaluate the part for itself in about the time of a barrier?"""
        if part.replicated:
            return True
        if not self.replicate or part.domain.flat or part.folds:
            return False
        if any(op.output in self.graph.outputs for op in part.stored):
            return False
        if (
            as_int(part.domain.rows) > heuristics.REPLICATED_ROWS
            or len(self.result.shared) >= heuristics.REPLICATED_VALUES
        ):
            return False
        if any(op.output in self.result.stored for op in part.stored):
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
        orientation(op) == Orientation.COLUMN and not has_many_results(op, blocks) for op in graph.reduces
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
