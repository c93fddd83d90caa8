# SPDX-License-Identifier: Apache-2.0
"""Bound what a kernel computes again: heavy values at every row, and windows at several points of a reader's window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

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
        operators: all that the domain may evaluate.
        choices: the device's constants of choice.
    """

    def __init__(self, domain: Domain, operators: Collection[Operator], choices: Choices):
        self.domain, self.choices = domain, choices
        self.windows: dict[Operator, int] = {}
        self.begin(operators)

    def begin(self, operators: Collection[Operator]) -> None:
        """Forget what was recorded, and take other operators."""
        self.largest: int | None = 0
        """The most elements of a tensor that the operators read or compute, None if one has a symbolic extent."""
        self.longest = 0
        """The most elements of a reduction."""
        self.include(operators)
        self.heavy: set[tuple[Operator, Point]] = set()
        self.loads: Counter[Operator] = Counter()
        self.evaluated: Counter[Operator] = Counter()
        self.windowed: set[Tensor] = set()
        """Tensors that an operator reads windows of."""

    def include(self, operators: Collection[Operator]) -> None:
        """Take more operators."""
        for op in operators:
            if op.is_reduce and isinstance(reduced := product([axis.extent for axis in op.reduce]), int):
                self.longest = max(self.longest, reduced)
        for size in (tensor.size for op in operators for tensor in (op.output, *op.inputs)):
            if self.largest is not None:
                self.largest = max(self.largest, size) if isinstance(size, int) else None

    def add(self, op: Operator, point: Point, root: bool) -> None:
        """Record an operator at a point. At the point of a ``root`` it is computed for its own elements.

        Raises:
            Misaligned: if more is computed again than the bounds allow. A grid-wide scheme would share it.
        """
        self._add_heavy(op, point)
        window = self._window(op)
        if op.op_class is OpClass.MOVE or window < self.choices.window_reads:
            return  # A move of data loads one of the elements.
        self.windowed |= {access.tensor for access in op.accesses}
        if self.longest >= self.choices.window_columns:
            raise Misaligned(f"{op.name} reads windows beside a reduction of {self.longest} elements")
        if not root:
            self._add_window(op, window)

    def _add_heavy(self, op: Operator, point: Point) -> None:
        if point.at not in (At.COLUMN, At.INDEX) or not is_heavy(op.value):
            return
        evaluated = product([self.domain.rows, point.columns])
        if point.at is At.INDEX:
            self._add_evaluated(op, evaluated)
        if point.at is At.INDEX and self._covers(op, evaluated):
            return
        if is_number(point.columns, 0) and self._covers(op, self.domain.rows):
            return  # Once a row is no more often than once an element.
        times = self._times(evaluated)
        if times >= self.choices.recomputed_times:
            raise Misaligned(f"heavy {op.name} would be computed {times} times for each of its elements")
        self.heavy.add((op, point))
        if len(self.heavy) > self.choices.recomputed_operators:
            raise Misaligned(f"heavy {op.name} and others would be computed again for every row")

    def _add_evaluated(self, op: Operator, evaluated: Extent) -> None:
        """Bound how often a heavy operator is computed for windows whose elements are expressions of one operator."""
        own = op.output.size
        if not isinstance(evaluated, int) or not isinstance(own, int):
            return
        self.evaluated[op] += evaluated
        often = self.evaluated[op] >= self.choices.recomputed_times * max(1, own)
        if often and any(_feeds(op, tensor) for tensor in self.windowed):
            raise Misaligned(f"heavy {op.name} would be computed again for each window that has its elements")

    def _times(self, evaluated: Extent) -> int:
        """Return how often each element is computed, where a domain has more elements than any tensor.

        An example is a pool: each row has the columns of a window, and neighbouring windows overlap.
        """
        if self.largest is None or not isinstance(evaluated, int):
            return 1
        return evaluated // max(1, self.largest)

    def _add_window(self, op: Operator, window: int) -> None:
        """Bound the loads of a window that another window's elements are, as in a pool behind a pool."""
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
