# SPDX-License-Identifier: Apache-2.0
"""The places of a stitch op's operators while they are put into stages, and the answers that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ....cost.sol import share_of
from ....device import DeviceModel
from ....graph.dtype import item_bytes
from ....graph.extent import product
from ....graph.ir import OpClass, Operator, StitchGraph, Tensor
from ...iteration.alignment import OneByOne, op_points, row_domains
from ...iteration.domain import Domain
from ...shared_memory import own_dtype
from ...slices import Cut, slice_graph, slice_operators
from ..orientation import as_int
from .draft import Draft


class Placement:
    """The stages of a graph in the making. It answers questions, and changes nothing.

    Args:
        graph: a stitch op's graph.
        device: the GPU that the kernel is for.
        replicate: whether every block may evaluate all of a small stage.
        preferred: names of operators to choose as the dominants of their groups.
    """

    def __init__(self, graph: StitchGraph, device: DeviceModel, replicate: bool, preferred: Collection[str]):
        self.graph, self.device, self.replicate, self.preferred = graph, device, replicate, preferred
        self.blocks = device.sms
        self.cut = Cut({op.output: op for op in graph.operators})
        self.drafts: list[Draft] = []
        self.home: dict[Operator, Draft] = {}
        self.alone: dict[Draft, OneByOne] = {}
        # With each stage of sums, whether it reads large inputs across memory.
        self.sums: dict[Draft, tuple[OneByOne, bool]] = {}
        # In the order in which they were replicated: none reads a later one.
        self.replicated: list[Draft] = []
        self.partials: dict[Operator, Tensor] = {}
        self.scalars: dict[Operator, int] = {}
        self.stored: dict[Tensor, int] = {}
        self.shared: dict[Tensor, int] = {}
        self.outputs = {t.producer for t in graph.outputs}

    def _is_repeated(self, op: Operator) -> bool:
        """Return whether every block takes a small sum of everything itself, for a product of few rows.

        A barrier in front of the product would cost as much, and its weights would wait for it.
        """
        if not (self.replicate and self.graph.has_products) or op in self.outputs:
            return False
        return as_int(op_points(op)) <= self._most_points

    @property
    def _most_points(self) -> int:
        """The most elements that every block may reduce, and keep."""
        choices = self.device.choices
        return choices.replicated_operands if self.graph.has_products else choices.replicated_points

    def _producers(self, op: Operator, seen: set[Operator]) -> Iterator[Operator]:
        """Yield the producers of the operator's inputs that are not global.

        Each is added to ``seen``. Producers that are in it already are left out.
        """
        for t in op.inputs:
            producer = self.cut.producer.get(t)
            if producer is not None and t not in self.cut.ready and producer not in seen:
                seen.add(producer)
                yield producer

    def _sources(self, root: Operator) -> list[Operator]:
        """Return the reductions placed in stages, and not global, whose results the root reads."""
        sources: dict[Operator, None] = {}
        seen: set[Operator] = set()

        def visit(op: Operator) -> None:
            for producer in self._producers(op, seen):
                if producer in self.home and producer.is_reduce:
                    sources[producer] = None
                else:
                    visit(producer)

        visit(root)
        return list(sources)

    def _kept_bytes(self, op: Operator) -> int:
        """Return the bytes that every block keeps if it keeps the results of an operator as well."""
        return sum(as_int(t.size) * item_bytes(own_dtype(t)) for t in (op.output, *self.shared))

    def _pays(self, op: Operator, reader: Operator, draft: Draft) -> bool:
        """Return whether a value of a stage's rows takes a heavy operator, and is small next to its reader.

        The reader would compute it again for each of its own elements. Blocks that evaluate a whole stage must have
        room for the value.
        """
        size, rows = as_int(op.output.size), as_int(draft.domain.rows)
        if (
            draft.domain.flat
            or size % rows
            or size * self.device.choices.stored_share > as_int(op_points(reader))
        ):
            return False
        if self._is_small(draft) and self._kept_bytes(op) > self.device.choices.replicated_bytes:
            return False
        seen: set[Operator] = set()
        left = [op]
        while left:
            each = left.pop()
            if each.op_class is OpClass.HEAVY:
                return True
            left += [p for p in self._producers(each, seen) if not p.is_reduce]
        return False

    def _earliest(self, root: Operator) -> int:
        """Return the first phase in which all global values that the root reads are available."""
        phase = 0
        for op in slice_operators(self.cut, [root], self.device.choices.most_phases):
            phase = max([phase, *(self.cut.ready.get(t, 0) for t in op.inputs)])
        return phase

    def _leaves(self, roots: Sequence[Operator], phase: int) -> set[Tensor]:
        operators = slice_operators(self.cut, roots, phase)
        computed = {op.output for op in operators}
        return {t for op in operators for t in op.inputs if t not in computed}

    def _idles(self, draft: Draft, root: Operator, across: bool) -> bool:
        """Return whether the few rows of a stage would move a root's bytes slower than a later stage of all blocks.

        A stage has at most one block for each row. An example is the mean of every image in a batch. The images that
        it scales have enough elements for all blocks, behind one more barrier.
        """
        if across or draft.domain.flat:
            return False
        share = share_of(as_int(draft.domain.rows), self.device)
        read = self._leaves([root], draft.phase)
        moved = sum(as_int(t.size) * item_bytes(t.dtype) for t in (*read, root.output))
        choices = self.device.choices
        between = choices.barrier_seconds if self.replicate else choices.launch_seconds
        rate = self.device.bandwidth * choices.copy_share * choices.resident_share
        return moved / rate * (1 / share - 1) > between

    @staticmethod
    def _fits(draft: Draft, root: Operator, across: bool) -> bool:
        rows = as_int(draft.domain.rows)
        if across:
            size = as_int(root.output.size)
            if size == 1:
                return as_int(op_points(root)) % rows == 0
            return as_int(product(a.extent for a in root.reduce)) == rows and not draft.domain.flat
        if root.is_reduce:
            return as_int(root.output.size) == rows and not draft.domain.flat
        if draft.domain.flat and draft.stored:  # one index walks the stored values of a flat stage
            return as_int(root.output.size) == as_int(next(iter(draft.stored)).output.size)
        return as_int(root.output.size) % rows == 0

    @staticmethod
    def _alike(draft: Draft, root: Operator) -> bool:
        """Return whether all roots of a stage are of the same kind and size as a root: one loop serves them."""
        return all(r.output.size == root.output.size and r.is_reduce == root.is_reduce for r in draft.roots)

    def _is_element_wise(self, draft: Draft, root: Operator) -> bool:
        """Return whether the stage and the root have no reductions, so that no root's point depends on another root."""
        if not draft.domain.flat or root in draft.roots:
            return False
        needed = slice_operators(self.cut, [root], draft.phase)
        return not any(op.is_reduce for op in (*needed, *draft.roots))

    def _is_sum_alone(self, draft: Draft, root: Operator) -> bool:
        """Return whether a stage has only sums of products, and the root is one: none reads another one's result."""
        if draft.domain.flat or draft.cross_row or root in draft.roots:
            return False
        if not root.contraction or not all(each.contraction for each in draft.roots):
            return False
        return not any(
            op.is_reduce for op in slice_operators(self.cut, [root], draft.phase) if op is not root
        )

    def _is_small(self, draft: Draft) -> bool:
        """Return whether every block can evaluate the whole stage in about the time of a barrier."""
        if draft.replicated:
            return True
        if not self.replicate or draft.domain.flat or draft.cross_row:
            return False
        if any(op.output in self.graph.outputs or op.output in self.stored for op in draft.stored):
            return False
        if as_int(draft.domain.rows) > self.device.choices.replicated_rows:
            return False
        if len(self.shared) >= self.device.choices.replicated_values:
            return False
        reduces = [r for r in draft.roots if r.is_reduce]
        products = any(r.contraction for r in reduces)
        most = self.device.choices.replicated_points if products else self._most_points
        return sum(as_int(op_points(r)) for r in reduces) <= most

    def _domains(self, root: Operator, phase: int, across: bool) -> list[tuple[Operator | None, Domain]]:
        """Return the domains worth trying for the stage that a root opens, each with the dominant that asks for it."""
        if across and as_int(root.output.size) > 1:
            return [(root, Domain(product(a.extent for a in root.reduce)))]
        if root.is_reduce and not across:
            return [(root, Domain(root.output.size))]
        if across:
            return [(root, Domain(1, flat=True))]
        graph, copies, _ = slice_graph(self.cut, [root], {root}, phase, "root")
        original: dict[Operator | None, Operator] = {copy: op for op, copy in copies.items()}
        return [(original.get(lead), domain) for lead, domain in row_domains(graph, preferred=self.preferred)]
