# SPDX-License-Identifier: Apache-2.0
"""The largest or smallest elements of rows on a CPU: one sweep over a row, with a heap of the best elements so far.

Elements are read block by block. A block's greatest element is compared with the heap's least one, by vectors. Only a
block with a greater element is looked at one by one. Among n elements in random order about ``k * log(n / k)`` enter a
heap of k, so the sweep takes about as long as a maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.tasks import SERIAL_WHERE
from ...codegen.emit import sound_for_cpu
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ..cpu.emit import compute_func
from .ordered import INDEX_BITS, NOTHING, index, order_of, with_index
from .selection import Selection

_ABOVE = 2**63 - 1


def cpu_selection(selection: Selection, block: int, serial_elements: int) -> PrimFunc:
    """Return the scheduled PrimFunc. Its parameters are the rows and the results.

    Args:
        selection: what is selected.
        block: elements that are compared with the heap's least one at once.
        serial_elements: elements of all rows up to which one thread computes them.
    """
    x, results = selection.buffers()
    with B.kernel() as body, _rows(selection, x, serial_elements) as row:
        _Row(selection, x, row, block).emit(results)
    return sound_for_cpu(compute_func([x, *results], body[0]))


@contextmanager
def _rows(selection: Selection, x: Buffer, serial_elements: int) -> Iterator[Expr]:
    """Open the loop over rows, which is parallel if there is enough work."""
    rows, length = x.shape
    known = compat.int_value(rows), compat.int_value(length)
    serial = known[0] is not None and known[1] is not None and known[0] * known[1] <= serial_elements
    few: AbstractContextManager[None] = nullcontext()
    if None in known:
        few = T.attr(compat.const(0, "int32"), SERIAL_WHERE, tir.LE(rows * length, B.i64(serial_elements)))
    with (
        few,
        B.loop("serial" if serial else "parallel", rows if known[0] is None else known[0], "row") as row,
    ):
        yield row


class _Row:
    """Emits the selection of one row.

    The heap has its least integer first. Integers behind its ``count`` are larger than all others, so that each element
    of the heap has two children.
    """

    def __init__(self, selection: Selection, x: Buffer, row: Expr, block: int):
        self.block = block
        self.of, self.x, self.row = selection, x, row
        self.count, self.length = selection.count, x.shape[1]
        self.heap = B.stack([2 * self.count + 1], "int64", "heap")

    def emit(self, results: list[Buffer]) -> None:
        """Emit the sweep, and the stores of its results."""
        for number in range(2):
            with B.loop("serial", self.count + number, "i") as i:
                at = i if number == 0 else i + B.i64(self.count)
                B.store(self.heap, B.i64(_ABOVE if number else NOTHING), [at])
        blocks = tir.floordiv(self.length, B.i64(self.block))
        with B.loop("serial", self._extent(blocks), "block") as block:
            self._compare(block * B.i64(self.block))
        rest = blocks * B.i64(self.block)
        count = self._extent(self.length - rest)
        if not isinstance(count, int) or count:
            with B.loop("serial", count, "i") as i:
                self._enter(rest + i)
        with B.loop("serial", self.count, "i") as i:
            self._store(results, B.i64(self.count - 1) - i)

    def _extent(self, value: Expr) -> int | Expr:
        known = compat.int_value(compat.Analyzer().simplify(value))
        return value if known is None else known

    def _order(self, at: Expr) -> Expr:
        return order_of(B.fetch(self.x, self.row, at), self.of.dtype, self.of.largest)

    def _least(self) -> Expr:
        """Return the order of the heap's least element, which is less than all others if there is none yet."""
        return B.fetch(self.heap, 0) >> B.i64(INDEX_BITS)

    def _compare(self, first: Expr) -> None:
        best = B.stack([1], "int32", "best")
        B.store(best, compat.const(-(2**31), "int32"), [B.i64(0)])
        with B.loop("serial", self.block, "i") as i:
            B.store(best, tir.max(B.fetch(best, 0), self._order(first + i)), [B.i64(0)])
        with B.when(tir.GT(tir.Cast("int64", B.fetch(best, 0)), self._least())):
            with B.loop("serial", self.block, "i") as i:
                self._enter(first + i)

    def _enter(self, at: Expr) -> None:
        """Emit the exchange of the heap's least element for an element of the row, if that is greater."""
        order = B.cell(self._order(at), "order", B.STACK)
        with B.when(tir.GT(tir.Cast("int64", order), self._least())):
            self._replace_least(with_index(order, at))

    def _replace_least(self, both: Expr) -> None:
        """Emit the exchange of the heap's least integer for another one."""
        heap, zero = self.heap, B.i64(0)
        entering = B.cell(both, "entering", B.STACK)
        at, child = (B.stack([1], "int64", name) for name in ("at", "child"))

        def descend(parent: Expr) -> None:
            left = B.cell(parent * B.i64(2) + B.i64(1), "left", B.STACK)
            right_is_less = tir.LT(B.fetch(heap, left + B.i64(1)), B.fetch(heap, left))
            B.store(child, left + tir.Cast("int64", right_is_less), [zero])

        B.store(at, zero, [zero])
        descend(zero)
        with B.loop_while(tir.LT(B.fetch(heap, B.fetch(child, 0)), entering)):
            B.store(heap, B.fetch(heap, B.fetch(child, 0)), [B.fetch(at, 0)])
            B.store(at, B.fetch(child, 0), [zero])
            descend(B.fetch(at, 0))
        B.store(heap, entering, [B.fetch(at, 0)])

    def _store(self, results: list[Buffer], place: Expr) -> None:
        """Emit the stores of the least element, and its removal from the heap."""
        at = B.cell(index(B.fetch(self.heap, 0), "int64"), "index", B.STACK)
        if compat.int_value(self.length) is None:  # a row may be shorter
            at = B.cell(tir.min(at, self.length - B.i64(1)), "inside", B.STACK)
        given = [B.fetch(self.x, self.row, at)] if self.of.values else []
        for buffer, value in zip(results, [*given, at]):
            dtype = compat.buffer_dtype(buffer)
            same = value is not at or dtype == "int64"
            B.store(buffer, value if same else tir.Cast(dtype, value), [self.row, place])
        self._replace_least(B.i64(_ABOVE))
