# SPDX-License-Identifier: Apache-2.0
"""Partition a stitch op into phases of stages: the Global scheme, chosen edge by edge (AStitch 4.2, 4.3).

The candidates of the dominant groups, reductions and outputs, are placed one by one, producers first. A stage is
opened by its dominant, which says what a row is. Each candidate joins the stage that holds the row values it reads,
if that stage's rows serve it as well (the passive locality check: Regional). Otherwise those values become global,
and the candidate goes into a stage of a later phase. Reductions across a stage's rows are accumulated block by block.
The partial results are global values, and the rest of the reduction belongs to the next phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ....device import DeviceModel
from ....graph.dtype import exchanged_dtype, item_bytes
from ....graph.ir import Operator, StitchGraph
from ... import dominants
from ...iteration.alignment import Misaligned, OneByOne
from ...kernel import Crossing
from ...shared_memory import own_dtype
from ...slices import Cut, Slice, aligned_slice, final_reduce, partial_tensor, slice_operators
from ..orientation import Orientation, as_int, has_many_results, is_strided, orientation, reads_are_strided
from .draft import Draft
from .placement import Placement


@dataclass(frozen=True)
class Partition:
    """Phases of stages for a grid of ``blocks`` blocks, and the values that cross between them.

    ``preferred`` names the operators that were preferred as dominants.
    """

    graph: StitchGraph
    blocks: int
    phases: Sequence[Sequence[Slice]]
    crossing: Crossing
    cut: Cut
    preferred: Collection[str] = ()


def partition(
    graph: StitchGraph, device: DeviceModel, replicate: bool = True, preferred: Collection[str] = ()
) -> Partition:
    """Partition a graph for a grid with one block for each multiprocessor.

    Args:
        graph: a stitch op's graph.
        device: the GPU that the kernel is for.
        replicate: whether every block may evaluate all of a small stage, which saves a barrier. The results of such a
            stage do not outlive a kernel.
        preferred: names of operators to choose as the dominants of their groups.

    Raises:
        Misaligned: when the graph has symbolic extents, or takes more phases or stages than a kernel should have.
    """
    for t in graph.touched():
        if not all(isinstance(e, int) and e > 0 for e in t.shape):
            raise Misaligned(f"{t.name} has a symbolic or empty shape, which a grid-wide plan does not serve")
    return _Partitioner(graph, device, replicate, preferred).run()


class _Partitioner(Placement):
    def run(self) -> Partition:
        for op in dominants.placing_order(self.graph, self.preferred):
            if op.is_reduce:
                self._reduce(op)
            else:
                self._position(op, stored=True)
        drafts: dict[int, list[Draft]] = {}
        for draft in self.drafts:
            draft.settle(self.cut)
            drafts.setdefault(draft.phase, []).append(draft)
        used = sorted(drafts)
        number = {f: i for i, f in enumerate(used)}

        def after(f: int) -> int:
            return next((number[g] for g in used if g >= f), len(used))

        turn = {draft: i for i, draft in enumerate(self.replicated)}
        phases = [
            [p.finished(number[f]) for p in sorted(drafts[f], key=lambda p: turn.get(p, len(turn)))]
            for f in used
        ]
        outputs = self.graph.outputs
        if any(op.output in outputs and f + 1 > used[-1] for op, f in self.scalars.items()):
            phases.append([])  # The phase in which a result is finished and written.
        return Partition(
            self.graph,
            self.blocks,
            phases,
            Crossing(
                self.partials,
                {op: number[f] for op, f in self.scalars.items()},
                {t: number[f] for t, f in self.stored.items()},
                {t: number[f] for t, f in self.shared.items()},
            ),
            Cut(self.cut.producer, {t: after(f) for t, f in self.cut.ready.items()}),
            self.preferred,
        )

    # -- reductions ---------------------------------------------------------------------------------------------
    def _reduce(self, op: Operator) -> None:
        lies = orientation(op)
        if lies is Orientation.ALL and self._is_repeated(op):
            lies = Orientation.ROW
        if lies is Orientation.ROW or (lies is Orientation.COLUMN and has_many_results(op, self.device)):
            self._position(op, stored=op in self.outputs)
            return
        draft = self._position(op, across=True)
        dtype = exchanged_dtype(op.output.dtype)
        partial = partial_tensor(op, self.blocks, dtype)
        self.partials[op] = partial
        self.cut.ready[partial] = draft.phase + 1
        if lies is Orientation.ALL:
            self.cut.ready[op.output] = draft.phase + 1
            self.scalars[op] = draft.phase
            return
        final = final_reduce(op, partial)
        self.cut.producer[op.output] = final
        self._position(final, stored=op in self.outputs)

    # -- placing ------------------------------------------------------------------------------------------------
    def _position(self, root: Operator, across: bool = False, stored: bool = False) -> Draft:
        while True:
            draft = self._finishing(root)
            if draft is not None and not across and self._join(draft, root, across, stored):
                return draft
            sources = self._sources(root)
            phase = self._earliest(root)
            homes = {self.home[s] for s in sources}
            tried = list(homes) if len(homes) == 1 else []
            if not homes:
                tried = list(self._neighbours(root, phase, across))
            for draft in tried:
                if draft.phase < phase or self._idles(draft, root, across):
                    continue
                if self._join(draft, root, across, stored):
                    return draft
            if not sources:
                return self._open(root, phase, across, stored)
            self._make_global(root)

    def _finishing(self, root: Operator) -> Draft | None:
        """Return the stage whose stored row values the root only processes further, row by row.

        The root belongs to that stage, a phase earlier.
        """
        if root.is_reduce:
            return None
        reads = {
            t for op in slice_operators(self.cut, [root], self.device.choices.most_phases) for t in op.inputs
        }
        for t in reads:
            producer = self.cut.producer.get(t)
            if producer is None or t not in self.stored:
                continue
            draft = self.home[producer]
            if root.output.size != draft.domain.rows:
                continue
            needed = slice_operators(self.cut, [root], draft.phase)
            if all(op in draft.roots for op in needed if op.is_reduce):
                return draft
        return None

    def _neighbours(self, root: Operator, phase: int, across: bool) -> Iterator[Draft]:
        """Yield the stages worth trying: those that read the root's inputs. Their rows must fit."""
        inputs = self._leaves([root], phase)
        tried = 0
        for draft in sorted(self.drafts, key=lambda p: p.phase):
            if (
                draft.phase < phase
                or tried >= self.device.choices.stages_tried
                or not self._fits(draft, root, across)
            ):
                continue
            shared = inputs & self._leaves(draft.roots, draft.phase)
            size = max((as_int(t.size) for t in inputs), default=0)
            if draft.phase == phase and (
                any(2 * as_int(t.size) >= size for t in shared) or self._alike(draft, root)
            ):
                tried += 1
                yield draft

    def _join(self, draft: Draft, root: Operator, across: bool, stored: bool, shared: bool = False) -> bool:
        roots = draft.roots if root in draft.roots else (*draft.roots, root)
        cross_row = draft.cross_row | {root} if across else draft.cross_row
        kept = draft.stored | {root} if stored else draft.stored
        if draft.replicated and root not in draft.roots and not shared:
            return False
        if not across and self._is_element_wise(draft, root):
            return self._join_alone(draft, root, stored)
        if not across and not stored and self._is_sum_alone(draft, root):
            return self._add_sum(draft, root)
        draft.settle(self.cut)
        try:
            joined = draft.with_roots(self.cut, roots, cross_row, kept)
            if is_strided(joined.alignment) and not is_strided(draft.piece.alignment):
                raise Misaligned("its rows lie across memory")
        except Misaligned:
            return False
        draft.become(joined)
        self.home[root] = draft
        return True

    def _join_alone(self, draft: Draft, root: Operator, stored: bool) -> bool:
        """Join if the root can be aligned alone. The stage is aligned once all its roots have joined.

        Aligning the whole stage for each of many results takes time that grows with their square.
        """
        known = self.alone.get(draft)
        if known is None or known.domain is not draft.domain:
            known = self.alone[draft] = OneByOne(draft.domain, self.device.choices)
        try:
            known.place(root, slice_operators(self.cut, [root], draft.phase))
        except Misaligned:
            return False
        draft.join(root, stored)
        self.home[root] = draft
        return True

    def _add_sum(self, draft: Draft, root: Operator) -> bool:
        """Join a sum of a product next to others. Like the results of ``_join_alone``, they are aligned once."""

        def added(known: OneByOne, each: Operator) -> bool:
            return reads_are_strided(
                draft.domain, known.add_reduction(each, slice_operators(self.cut, [each], draft.phase))
            )

        known, strided = self.sums.pop(draft, (None, False))
        try:
            if known is None:
                known = OneByOne(draft.domain, self.device.choices)
                for each in draft.roots:
                    strided |= added(known, each)
            if added(known, root) and not strided:
                return False
        except Misaligned:
            return False
        self.sums[draft] = known, strided
        draft.join(root, stored=False)
        self.home[root] = draft
        return True

    def _open(self, root: Operator, phase: int, across: bool, stored: bool) -> Draft:
        if phase >= self.device.choices.most_phases:
            raise Misaligned(
                f"{root.name} would be in phase {phase + 1} of at most {self.device.choices.most_phases}"
            )
        if len(self.drafts) >= self.device.choices.most_stages:
            raise Misaligned(f"more than {self.device.choices.most_stages} stages with rows of their own")
        reasons = []
        crossing, kept = [root] if across else [], [root] if stored else []
        for dominant, domain in self._domains(root, phase, across):
            try:
                opened = aligned_slice(
                    self.cut, self.device.choices, phase, domain, [root], crossing, kept, dominant=dominant
                )
            except Misaligned as err:
                reasons.append(str(err))
                continue
            draft = Draft(opened)
            self.drafts.append(draft)
            self.home[root] = draft
            self._absorb(draft)
            return draft
        raise Misaligned(reasons[0] if reasons else f"no domain for {root.name}")

    def _absorb(self, draft: Draft) -> None:
        """Move reductions to one result from flat stages that read the same data into a new stage with rows."""
        if draft.domain.flat:
            return
        inputs = self._leaves(draft.roots, draft.phase)
        for other in [p for p in self.drafts if p is not draft and p.phase == draft.phase and p.domain.flat]:
            leaves = self._leaves(other.roots, other.phase)
            if not (other.cross_row and leaves & inputs) or any(
                r not in other.cross_row for r in other.roots
            ):
                continue
            before = draft.piece
            if all(self._fits(draft, r, True) and self._join(draft, r, True, False) for r in other.roots):
                self.drafts.remove(other)
            else:
                draft.become(before)
                self.home |= dict.fromkeys(other.roots, other)

    # -- global values ------------------------------------------------------------------------------------------
    def _make_global(self, root: Operator) -> None:
        """Store the values of rows that the root reads: the last ones of row size before it, or else reductions.

        A costly value that the root reads many times is stored with its columns. An example is the quotient of each
        channel's sum and the mean of these sums.
        """
        if root.contraction and self._share_operands(root):
            return
        seen: set[Operator] = set()

        def visit(op: Operator) -> None:
            if op is not root and self._store_product(op):
                return
            for producer in self._producers(op, seen):
                if producer in self.home and producer.is_reduce:
                    self._store(producer, self.home[producer])
                    continue
                homes = {self.home[s] for s in self._sources(producer)}
                if len(homes) == 1:
                    (draft,) = homes
                    whole = producer.output.size == draft.domain.rows or self._pays(producer, op, draft)
                    if whole and self._stores(producer, draft):
                        continue
                visit(producer)

        visit(root)

    def _store_product(self, op: Operator) -> bool:
        """Store an operator that picks the elements of a product out of sums, in place of the sums.

        A later operator then reads one value, and picks nothing. Return whether the operator is one.
        """
        sums = [self.cut.producer.get(t) for t in op.inputs]
        homes = {self.home[each] for each in sums if each in self.home and each.contraction}
        if len(homes) != 1 or not all(each in self.home and each.contraction for each in sums):
            return False
        (draft,) = homes
        all_rows = len(sums) >= 2 and op.output.size == len(sums) * as_int(draft.domain.rows)
        return all_rows and self._stores(op, draft)

    def _share_operands(self, root: Operator) -> bool:
        """Let every block compute the operand of a product's sums that does not depend on the weights, and keep it.

        Return whether there is one.

        Raises:
            Misaligned: when there is no room. Each row of weights would compute the operand again.
        """
        shares = False
        for producer in list(self._producers(root, set())):
            homes = {self.home[source] for source in self._sources(producer)}
            if producer.is_reduce or not homes:
                continue
            if not self._store_rows(producer, homes):
                self._share_operand(producer, homes)
            shares = True
        return shares

    def _store_rows(self, op: Operator, homes: Collection[Draft]) -> bool:
        """Store the operand of a product where another product's rows of weights give it. Return whether they do."""
        (draft, *others) = homes
        if others or not any(root.contraction for root in draft.roots):
            return False
        return as_int(op.output.size) >= as_int(draft.domain.rows) and self._stores(op, draft)

    def _share_operand(self, op: Operator, homes: Collection[Draft]) -> None:
        (draft, *others) = homes
        together = [op.output, *(t for t, phase in self.shared.items() if phase == draft.phase)]
        kept = sum(as_int(t.size) * item_bytes(own_dtype(t)) for t in together)
        fits = not others and kept <= self.device.choices.replicated_bytes
        if not fits or not self._join(draft, op, False, True, shared=True) or not self._is_small(draft):
            raise Misaligned(f"{op.name} would be computed again for every row of weights")
        self._keep(op, draft)

    def _stores(self, op: Operator, draft: Draft) -> bool:
        """Store a value where it is computed, if its operands are there by then. Return whether it is stored."""
        shared = self._may_join_shared(op, draft)
        if self._earliest(op) > draft.phase or not self._join(draft, op, False, True, shared):
            return False
        self._hand_over(op, draft)
        return True

    def _may_join_shared(self, op: Operator, draft: Draft) -> bool:
        """Return whether a stage that every block evaluates has room for a value, and runs behind what it reads."""
        if not draft.replicated or len(self.shared) >= self.device.choices.replicated_values:
            return False
        read = [t for t in self._leaves([op], draft.phase) if self.shared.get(t) == draft.phase]
        behind = self.replicated[: self.replicated.index(draft) + 1]
        return all(self.home[self.cut.producer[t]] in behind for t in read)

    def _store(self, op: Operator, draft: Draft) -> None:
        if not self._join(draft, op, False, True):
            raise Misaligned(f"{op.name} cannot be stored where it is computed")
        self._hand_over(op, draft)

    def _hand_over(self, op: Operator, draft: Draft) -> None:
        """Make a stored value available: to a block itself if the stage is small, else behind a barrier."""
        if self._is_small(draft):
            self._keep(op, draft)
            return
        self.cut.ready[op.output] = draft.phase + 1
        self.stored[op.output] = draft.phase

    def _keep(self, op: Operator, draft: Draft) -> None:
        """Let every block evaluate a stage, and keep a value of it."""
        if not draft.replicated:
            draft.replicate()
            self.replicated.append(draft)
        self.cut.ready[op.output] = self.shared[op.output] = draft.phase
