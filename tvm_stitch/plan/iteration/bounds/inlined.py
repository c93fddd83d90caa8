# SPDX-License-Identifier: Apache-2.0
"""Bound expressions below conditions: a value there has no name, and is written again at each of its reads.

An example is a scan that doubles its reach in each step, and concatenates behind each step. The parts of a
concatenation are read below a condition, and each step reads the step before several times. So the expression of the
last step grows exponentially with the number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.ir import OpClass, Operator
from ..domain import At, Point
from ..gather import Misaligned


class InlinedSizes:
    """Sizes of the expressions of operators at points, if values at points of their own are written at each read.

    Args:
        most: the most operators of an expression below a condition. Moves of data do not count.
    """

    def __init__(self, most: int):
        self._most = most
        self._sizes: dict[tuple[Operator, Point], int] = {}
        self._conditional: set[tuple[Operator, Point]] = set()
        """Operators at points whose expressions have conditions themselves. Only such ones grow exponentially."""

    def add(self, op: Operator, point: Point, reads: Sequence[Point | None]) -> None:
        """Record an operator whose operands were recorded before it.

        Args:
            op: the operator.
            point: the point at which it is evaluated.
            reads: the point of each of its accesses, None for a gather's data.

        Raises:
            Misaligned: if it reads too large an expression below a condition, which has a condition of its own.
        """
        size = int(op.op_class is not OpClass.MOVE)
        for access, child in zip(op.accesses, reads):
            producer = access.tensor.producer
            if producer is None or child is None or child.at is not At.INDEX:
                continue
            inlined = self._sizes.get((producer, child), 1)
            if access.guarded or (producer, child) in self._conditional:
                self._conditional.add((op, point))
            if access.guarded and inlined > self._most and (producer, child) in self._conditional:
                raise Misaligned(f"{op.name} reads {inlined} operations below a condition")
            size += inlined
        self._sizes[(op, point)] = size
