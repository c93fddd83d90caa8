# SPDX-License-Identifier: Apache-2.0
"""Bound what a kernel computes again: heavy values at every row, and windows at several points of a reader's window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .... import compat
from ....cost.choices import Choices
from ....graph.classify import is_heavy
from ....graph.extent import Extent, is_number, product, same
from ....graph.ir import OpClass, Operator, Tensor
from ..domain import At, Domain, Point
from ..gather import Misaligned


class Recomputed:
    """Operators that are evaluated at points other than their own elements.

    Args:
        domain: of the rows that evaluate them.
        tensors: what the kernel reads and computes.
        choices: the device's constants of choice.
    """

    def __init__(self, domain: Domain, tensors: Sequence[Tensor], choices: Choices):
        self.domain, self.tensors, self.choices = domain, tensors, choices
        self.windows: dict[Operator, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all operators."""
        self.heavy: set[tuple[Operator, Point]] = set()
        self.loads: Counter[Operator] = Counter()
        self.points: Counter[Operator] = Counter()
        self.windowed: set[Tensor] = set()
        """Tensors that an operator reads windows of."""

    def add(self, op: Operator, point: Point, root: bool) -> None:
        """Record an operator at a point. At the point of a ``root`` it is computed for its own elements.

        Raises:
            Misaligned: if more is computed again than the bounds allow. A grid-wide scheme would share it.
        """
        self._add_heavy(op, point)
        if op.op_class is not OpClass.MOVE and self._window(op) >= self.choices.window_reads:
            self.windowed |= {access.tensor for access in op.accesses}
        if not root:
            self._add_window(op)

    def _add_heavy(self, op: Operator, point: Point) -> None:
        if point.at not in (At.COLUMN, At.INDEX) or not is_heavy(op.value):
            return
        self._add_point(op, point)
        if point.at is At.INDEX and self._covers(op, product([self.domain.rows, point.columns])):
            return
        if is_number(point.columns, 0) and self._covers(op, self.domain.rows):
            return  # Once a row is no more often than once an element.
        times = self._times(op, point)
        if times >= self.choices.recomputed_times:
            raise Misaligned(f"heavy {op.name} would be computed {times} times for each of its elements")
        self.heavy.add((op, point))
        if len(self.heavy) > self.choices.recomputed_operators:
            raise Misaligned(f"heavy {op.name} and others would be computed again for every row")

    def _add_point(self, op: Operator, point: Point) -> None:
        """Bound how often a heavy operator is computed for windows whose elements are expressions of one operator."""
        evaluated, own = product([self.domain.rows, point.columns]), op.output.size
        if point.at is not At.INDEX or not isinstance(evaluated, int) or not isinstance(own, int):
            return
        self.points[op] += evaluated
        often = self.points[op] >= self.choices.recomputed_times * max(1, own)
        if often and any(_feeds(op, tensor) for tensor in self.windowed):
            raise Misaligned(f"heavy {op.name} would be computed again for each window that has its elements")

    def _times(self, op: Operator, point: Point) -> int:
        """Return how often each element is computed, where a domain has more elements than any tensor.

        An example is a pool: each row has the columns of a window, and neighbouring windows overlap.
        """
        sizes = [product([self.domain.rows, point.columns]), op.output.size, *(t.size for t in self.tensors)]
        known = [size for size in sizes if isinstance(size, int)]
        return known[0] // max(1, *known[1:]) if len(known) == len(sizes) else 1

    def _add_window(self, op: Operator) -> None:
        """Bound the loads of a window that another window's elements are, as in a pool behind a pool."""
        if op.op_class is OpClass.MOVE:
            return  # It loads one of the elements.
        window = self._window(op)
        if window < self.choices.window_reads:
            return
        self.loads[op] += window
        if window < self.loads[op] > self.choices.window_loads:
            raise Misaligned(
                f"{op.name} reads {window} elements, and would be computed again for each reader"
            )

    def _window(self, op: Operator) -> int:
        """Return the different elements of one tensor that an operator reads."""
        if len(op.accesses) < self.choices.window_reads:
            return len(op.accesses)
        if op not in self.windows:
            elements = {
                (access.tensor, *map(compat.expression_key, access.indices)): access.tensor
                for access in op.accesses
            }
            self.windows[op] = max(Counter(elements.values()).values())
        return self.windows[op]

    def _covers(self, op: Operator, size: Extent) -> bool:
        """Return whether an operator has at least as many elements."""
        own = op.output.size
        if isinstance(own, int) and isinstance(size, int):
            return own >= size
        return same(own, size, self.domain.analyzer)


def _feeds(op: Operator, tensor: Tensor) -> bool:
    """Return whether elements of a tensor are computed from an operator's, with no reduction between."""
    waiting, seen = [tensor], set[Tensor]()
    while waiting:
        each = waiting.pop()
        if each in seen or each.producer is None:
            continue
        if each.producer is op:
            return True
        seen.add(each)
        waiting += [] if each.producer.is_reduce else each.producer.inputs
    return False
