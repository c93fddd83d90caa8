# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer on a CPU in one kernel: the loop over time, the product of the state, and the cell.

A step multiplies the state by weights that are packed by blocks of hidden units. A block holds the weights of all
gates of its units. So the sums of a unit's gates are in registers together, and the cell follows in place. The
product of the inputs by their weights is computed before, for all steps at once, in the same order of columns.

Tasks either divide the units, with a barrier behind each step, or divide the batch and never meet. The time loop lies
inside one parallel region in both cases: a region for each step would cost more than a step of a small layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from ... import compat
from ...codegen import builder as B
from ...codegen.cpu.lanes import LaneWriter
from ...codegen.cpu.tasks import SERIAL_WHERE
from ...codegen.emit import sound_for_cpu
from ...codegen.vector_math import lower_math
from ...codegen.vector_math.scope import quotient
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...graph.extent import Extent, as_expr
from ..cpu.emit import compute_func
from .cell import Cell, Layer, Part, parts_of

DTYPE = "float32"


@dataclass(frozen=True)
class Tiling:
    """The division of a recurrent layer into tasks and tiles on a CPU.

    Attributes:
        lanes: elements of a vector.
        units: hidden units of a block of weights, a multiple of ``lanes``.
        rows: most rows of the batch that a tile of sums has.
        by_units: whether parallel tasks divide the units. Otherwise they divide the batch.
        serial_work: multiplications of a call up to which a divided batch is computed by one thread.
    """

    lanes: int
    units: int
    rows: int
    by_units: bool
    serial_work: int

    def blocks(self, cell: Cell) -> int:
        """Return the number of blocks of units, the last of which may have padding."""
        return -(-cell.hidden // self.units)

    def padded(self, cell: Cell) -> int:
        """Return the number of units with padding."""
        return self.blocks(cell) * self.units


def scratch_rows(cell: Cell) -> int:
    """Return the number of values for each unit and row of the batch that the kernel keeps between steps.

    They are the states before and after a step, an LSTM's cell state, and the two results of a first product.
    """
    return 2 + cell.has_cell_state + 2 * cell.two_products


def weights_shape(cell: Cell, tiling: Tiling) -> list[int]:
    """Return the shape of the packed weights of the state.

    A block's gates lie side by side if one product reads them all. Of two products, each would skip the lines of the
    other's gates, which the processor loads ahead. So the gates lie one behind the other then.
    """
    blocks = tiling.blocks(cell)
    if cell.two_products:
        return [cell.gates, blocks, cell.hidden, tiling.units]
    return [blocks, cell.hidden, cell.gates, tiling.units]


def recurrent_kernel(layer: Layer, tiling: Tiling, steps: Extent, batch: Extent) -> PrimFunc:
    """Return the scheduled PrimFunc of a layer.

    Its parameters are the projected inputs ``<T, B, blocks*gates*units>``, the packed weights of ``weights_shape``,
    then ``h`` and the further operands of ``layer.operands``. Weights of units (``peepholes`` <3, padded>,
    ``product_bias`` <padded>) are padded. The inputs of a program are ``<T, B, inputs, padded>``, and its ``vectors``
    <V, padded>. The results are ``y`` <T,B,H>, the last state <B,H>, an LSTM's last cell state, and scratch memory
    ``<scratch_rows, B, padded>``.

    Args:
        layer: the layer.
        tiling: its tiling.
        steps, batch: extents T and B, which may be symbolic.
    """
    emitter = _Emitter(layer, tiling, steps, batch)
    with B.kernel() as body:
        emitter.emit()
    return sound_for_cpu(compute_func(emitter.params, body[0]))


class _Emitter:
    def __init__(self, layer: Layer, tiling: Tiling, steps: Extent, batch: Extent):
        self.layer, self.cell, self.tiling = layer, layer.cell, tiling
        self.steps, self.batch = as_expr(steps), as_expr(batch)
        cell, padded = layer.cell, tiling.padded(layer.cell)
        blocks, hidden = tiling.blocks(cell), cell.hidden
        states = [self.batch, hidden]
        columns = [blocks * cell.gates * tiling.units] if cell.program is None else [cell.inputs, padded]
        shapes: dict[str, Any] = {
            "x": [self.steps, self.batch, *columns],
            "r": weights_shape(cell, tiling),
            "h": states,
            "c": states,
            "peepholes": [3, padded],
            "vectors": [cell.vectors, padded],
            "product_bias": [padded],
            "lengths": [self.batch],
        }
        inputs = [name for name in layer.operands if name in shapes]
        results = {"y": [self.steps, self.batch, hidden], "last": states}
        if cell.has_cell_state:
            results["last_cell"] = states
        results["scratch"] = [scratch_rows(cell), self.batch, padded]
        self.of: dict[str, Buffer] = {
            name: tir.decl_buffer([as_expr(e) for e in shape], "int32" if name == "lengths" else DTYPE, name)
            for name, shape in ({name: shapes[name] for name in inputs} | results).items()
        }
        self.params = [self.of[name] for name in (*inputs, *results)]

    # -- tasks -----------------------------------------------------------------------------------------------------
    def emit(self) -> None:
        """Emit the kernel."""
        if self.tiling.by_units:
            with _attribute("pragma_parallel_launch_point", compat.const(1, "int32")):
                self._sequence(B.i64(0), self.batch, self._parallel_blocks)
            return
        rows = self.tiling.rows
        work = self.steps * self.batch * B.i64(self.cell.gates * self.cell.hidden**2)
        few = tir.Or(tir.LE(work, B.i64(self.tiling.serial_work)), tir.LE(self.batch, B.i64(rows)))
        tiles = tir.floordiv(self.batch + B.i64(rows - 1), B.i64(rows))
        count = compat.int_value(tiles)
        with (
            _attribute(SERIAL_WHERE, few),
            B.loop("parallel", tiles if count is None else count, "task") as task,
        ):
            first = task * B.i64(rows)
            self._sequence(first, tir.min(self.batch - first, B.i64(rows)), self._serial_blocks)

    @contextmanager
    def _parallel_blocks(self) -> Iterator[Expr]:
        with _attribute("pragma_parallel_barrier_when_finish", compat.const(1, "int32")):
            with B.loop("parallel", self.tiling.blocks(self.cell), "block") as block:
                yield block

    @contextmanager
    def _serial_blocks(self) -> Iterator[Expr]:
        with B.loop("serial", self.tiling.blocks(self.cell), "block") as block:
            yield block

    # -- the sequence ----------------------------------------------------------------------------------------------
    def _sequence(self, first: Expr, rows: Expr, blocks: Blocks) -> None:
        """Emit all steps for some rows of the batch."""
        with blocks() as block, B.loop("serial", rows, "row") as row:
            self._enter(block, first + row)
        with B.loop("serial", self.steps, "step") as step:
            for part in parts_of(self.cell, step):
                self._part(part, first, rows, blocks)
        with blocks() as block, B.loop("serial", rows, "row") as row:
            self._leave(block, first + row)

    def _part(self, part: Part, first: Expr, rows: Expr, blocks: Blocks) -> None:
        """Emit a part of a step for all blocks of units, in tiles of the most rows, and other rows one by one."""
        most, known = self.tiling.rows, compat.int_value(rows)
        whole = tir.floordiv(rows, B.i64(most)) if known is None else B.i64(known // most)
        with blocks() as block:
            if most > 1 and (known is None or known >= most):
                with B.loop("serial", whole if known is None else known // most, "tile") as tile:
                    self._tile(part, block, first + tile * B.i64(most), most)
            done = whole * B.i64(most) if most > 1 else B.i64(0)
            left = rows - done if known is None else known % most if most > 1 else known
            if not isinstance(left, int) or left:
                with B.loop("serial", left, "rest") as rest:
                    self._tile(part, block, first + done + rest, 1)

    def _enter(self, block: Expr, row: Expr) -> None:
        """Copy the first states of a block's units to scratch memory."""
        scratch = self.of["scratch"]
        self._copied(block, self.of["h"], [row], scratch, [B.i64(0), row])
        if self.cell.has_cell_state:
            self._copied(block, self.of["c"], [row], scratch, [B.i64(2), row])

    def _leave(self, block: Expr, row: Expr) -> None:
        """Copy the last states to the results."""
        scratch, last = self.of["scratch"], tir.floormod(self.steps, B.i64(2))
        self._copied(block, scratch, [last, row], self.of["last"], [row])
        if self.cell.has_cell_state:
            self._copied(block, scratch, [B.i64(2), row], self.of["last_cell"], [row])

    def _copied(
        self, block: Expr, source: Buffer, source_row: list[Expr], to: Buffer, to_row: list[Expr]
    ) -> None:
        """Copy a row's elements of a block of units."""
        for offset in range(0, self.tiling.units, self.tiling.lanes):
            unit = block * B.i64(self.tiling.units) + B.i64(offset)
            self._units(unit, to, to_row, lambda at: B.fetch(source, *source_row, at), unit)

    def _units(
        self, unit: Expr, to: Buffer, to_row: list[Expr], value: Callable[[Expr], Expr], base: Expr
    ) -> None:
        """Store a vector of units from ``unit`` on, without the padding of the last block.

        ``value`` is a function of ``base`` plus the number of the lane.
        """

        def part(count: Any, kind: str) -> None:
            with B.loop(kind, count, "v") as v:
                B.store(to, value(base + v), [*to_row, unit + v])

        hidden, lanes = self.cell.hidden, self.tiling.lanes
        if self.tiling.padded(self.cell) == hidden:
            part(lanes, "vectorized")
            return
        left = B.i64(hidden) - unit
        B.either(
            tir.GE(left, B.i64(lanes)),
            lambda: part(lanes, "vectorized"),
            lambda: part(tir.max(left, B.i64(0)), "serial"),
        )

    # -- a tile ----------------------------------------------------------------------------------------------------
    def _tile(self, part: Part, block: Expr, row: Expr, rows: int) -> None:
        """Emit a step of a block of units for some rows: sums of products, and the cell."""
        units, lanes = self.tiling.units, self.tiling.lanes
        width = units if rows * len(part.gates) * units <= self._most_sums() else lanes
        with B.loop("serial", units // width, "piece") as piece:
            offset = piece * B.i64(width)
            sums = self._sums(part, block, offset, row, rows, width)
            for i in range(rows):
                for first in range(0, width, lanes):
                    writer = LaneWriter(lanes)
                    products = [B.fetch(line, B.i64(first) + writer.lane) for line in sums[i]]
                    self._cell(part, writer, row + B.i64(i), block, offset + B.i64(first), products)

    def _most_sums(self) -> int:
        return (16 if self.tiling.lanes == 16 else 8) * self.tiling.lanes

    def _sums(
        self, part: Part, block: Expr, offset: Expr, row: Expr, rows: int, width: int
    ) -> list[list[Buffer]]:
        """Emit the products of the state and a piece of a block's weights. Return a buffer for each row and gate.

        A tile of few sums has several chains of additions, which do not wait for each other.
        """
        cell, lanes, gates = self.cell, self.tiling.lanes, part.gates
        chains = max(1, min(4, 8 * lanes // (rows * len(gates) * width)))
        while cell.hidden % chains:
            chains //= 2
        scratch, weights = self.of["scratch"], self.of["r"]
        operand = B.i64(3) if part.second else tir.floormod(part.step, B.i64(2))
        sums = [
            [[B.stack([width], DTYPE, f"sum{c}_{i}_{g}") for g in gates] for i in range(rows)]
            for c in range(chains)
        ]

        def each(chain: int, value: Callable[[int, int, Expr], Expr]) -> None:
            for i in range(rows):
                for n in range(len(gates)):
                    for first in range(0, width, lanes):
                        with B.loop("vectorized", lanes, "v") as v:
                            at = B.i64(first) + v
                            B.store(sums[chain][i][n], value(i, n, at), [at])

        def product(chain: int, k: Expr) -> Callable[[int, int, Expr], Expr]:
            def value(i: int, n: int, at: Expr) -> Expr:
                line = [gates[n], block, k] if cell.two_products else [block, k, gates[n]]
                weight = B.fetch(weights, *line, offset + at)
                state = B.fetch(scratch, operand, row + B.i64(i), k)
                return B.fetch(sums[chain][i][n], at) + state * weight

            return value

        def added(chain: int) -> Callable[[int, int, Expr], Expr]:
            return lambda i, n, at: B.fetch(sums[0][i][n], at) + B.fetch(sums[chain][i][n], at)

        for chain in range(chains):
            each(chain, lambda *_: compat.float_const(0.0, DTYPE))
        with B.loop("serial", cell.hidden // chains, "k") as k:
            for chain in range(chains):
                each(chain, product(chain, k * B.i64(chains) + B.i64(chain)))
        for chain in range(1, chains):
            each(0, added(chain))
        return sums[0]

    def _cell(
        self, part: Part, lanes: LaneWriter, row: Expr, block: Expr, offset: Expr, products: list[Expr]
    ) -> None:
        """Emit the cell of one vector of units of one row."""
        cell, scratch, of = self.cell, self.of["scratch"], self.of
        values, units = _Values(lanes), B.i64(self.tiling.units)
        time = self.steps - B.i64(1) - part.step if self.layer.backwards else part.step
        unit = block * units + offset + lanes.lane

        def kept(at: Expr | int, name: str) -> Expr:
            return values.bound(B.fetch(scratch, at, row, unit), name)

        def input_of(gate: int) -> Expr:
            if cell.program is not None:
                return values.bound(B.fetch(of["x"], time, row, gate, unit), "input")
            column = (block * B.i64(cell.gates) + B.i64(gate)) * units + offset + lanes.lane
            return values.bound(B.fetch(of["x"], time, row, column), "input")

        state = kept(tir.floormod(part.step, B.i64(2)), "state")
        numbers = part.gates if cell.program is None else range(cell.inputs)
        inputs = [input_of(number) for number in numbers]
        products = [values.bound(each, "product") for each in products]
        if cell.product_bias:
            products[-1] = values.apply("add", products[-1], B.fetch(of["product_bias"], unit))
        if cell.two_products and not part.second:
            update, operand = cell.first_half(values, inputs, products, state)
            lanes.store(scratch, update, [B.i64(2), row, unit])
            lanes.store(scratch, operand, [B.i64(3), row, unit])
            return
        before, after = None, None
        if cell.two_products:
            result = cell.second_half(values, inputs[0], products[0], kept(2, "update"), state)
        else:
            before = kept(2, "cell_state") if cell.has_cell_state else None
            of_units = of.get("vectors" if cell.program else "peepholes")
            vectors = [values.bound(B.fetch(of_units, n, unit), "vector") for n in range(cell.vectors)]
            result, after = cell.step(values, inputs, products, state, before, vectors)
        shown = result
        if self.layer.masked:
            inside = tir.LT(tir.Cast("int32", time), B.fetch(of["lengths"], row))
            shown = values.chosen(inside, result, compat.float_const(0.0, DTYPE))
            result = values.chosen(inside, result, state)
            after = None if after is None else values.chosen(inside, after, before)
        lanes.store(scratch, result, [tir.floormod(part.step + B.i64(1), B.i64(2)), row, unit])
        if after is not None:
            lanes.store(scratch, after, [B.i64(2), row, unit])
        first = block * units + offset
        self._units(first, of["y"], [time, row], lambda lane: lanes.at(shown, lane), B.i64(0))


Blocks = Callable[[], AbstractContextManager[Expr]]
"""Opens a loop over the blocks of units."""


class _Values:
    """The arithmetic of a kernel: each value is bound to a buffer of one element a lane."""

    def __init__(self, lanes: LaneWriter):
        self.lanes = lanes

    def bound(self, value: Expr, name: str) -> Expr:
        return self.lanes.bind(value, name)

    def chosen(self, condition: Expr, yes: Expr, no: Expr) -> Expr:
        return self.bound(tir.Select(condition, yes, no), "chosen")

    def constant(self, value: float) -> Expr:
        return compat.float_const(value, DTYPE)

    def apply(self, operator: str, *operands: Expr) -> Expr:
        made = _OPERATORS[operator](*operands)
        return self.bound(lower_math(made, lambda part: self.bound(part, "part")), operator)


_OPERATORS: dict[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": quotient,
    "maximum": lambda a, b: tir.Max(a, b),
    "minimum": lambda a, b: tir.Min(a, b),
    "abs": lambda x: tir.abs(x),
    "exp": lambda x: tir.exp(x),
    "log": lambda x: tir.log(x),
    "tanh": lambda x: tir.tanh(x),
    "sigmoid": lambda x: tir.sigmoid(x),
    "zero_below": lambda least, x: tir.Select(tir.GT(x, least), x, compat.float_const(0.0, DTYPE)),
}


def _attribute(key: str, value: Any) -> Any:
    return T.attr(compat.const(0, "int32"), key, value)
