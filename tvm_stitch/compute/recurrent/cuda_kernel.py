# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer on a CUDA device in one kernel: the loop over time runs in clusters of thread blocks.

Each block of a cluster has some hidden units, and keeps the weights of their gates in shared memory for all steps. A
warp computes a unit. Its lanes divide the products of the state and the unit's weights. Then each lane has the cell of
one row of the batch. Every block sends its part of the next state to the shared memory of all blocks, and a barrier of
the cluster ends the step. So no step needs a launch, or memory that other clusters see.

Clusters have rows of the batch of their own, and never meet. Sums, states and cells are float32. The product of the
inputs by their weights is computed before, for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ... import compat
from ...codegen import builder as B
from ...codegen.emit import sound_for_gpu
from ...compat import Buffer, Expr, PrimFunc, T, tir
from ...device import DeviceModel
from ...graph.dtype import item_bytes
from ...graph.extent import Extent, as_expr
from ...repairs.tir.arithmetic import DEVICE
from ...repairs.tir.opaque import as_c_type
from ...support.failures import Refusal
from ..cpu.emit import compute_func
from ..cuda.splits import Cluster
from .cell import Cell, Layer, Part, parts_of

FLOAT = "float32"
LANES = 32
TYPES = ("float16", "bfloat16", "float32")
"""Types of the weights and states in memory."""


@dataclass(frozen=True)
class Division:
    """The division of a recurrent layer on a GPU.

    Attributes:
        blocks: blocks of a cluster, which divide the hidden units.
        units: hidden units of a block. The last blocks may have fewer.
        kept: those of a block's units whose weights stay in shared memory. Others are read in each step.
        rows: rows of the batch of a cluster.
        warps: warps of a block.
    """

    blocks: int
    units: int
    kept: int
    rows: int
    warps: int


def division_of(cell: Cell, dtype: str, batch: int | None, device: DeviceModel) -> Division:
    """Return the division of a layer.

    Args:
        cell: the layer's cell.
        dtype: type of the weights.
        batch: rows of the batch, or None if their number is symbolic.
        device: the GPU.

    Raises:
        Refusal: if the device has no clusters, or if a cluster would read too many weights in each step.
    """
    choices = device.choices
    if cell.projection is not None:
        raise Refusal("its state is projected")
    if dtype not in TYPES:
        raise Refusal(f"its weights are of type {dtype}")
    if device.max_cluster < 2:
        raise Refusal("the device has no clusters")
    blocks = min(device.max_cluster, choices.recurrent_cluster, -(-cell.hidden // choices.recurrent_warps))
    units = -(-cell.hidden // blocks)
    of_unit = cell.gates * cell.hidden * item_bytes(dtype)
    clusters = max(1, device.sms // blocks)
    rows = choices.recurrent_gpu_rows
    if batch is not None:
        rows = min(rows, max(1, -(-batch // clusters)))
    states = (2 + cell.two_products) * rows * cell.hidden * 4 + 2 * rows * units * 4
    kept = max(0, min(units, (device.shared_per_block - states) // of_unit))
    if (units - kept) * of_unit > choices.recurrent_streamed_bytes:
        raise Refusal(
            f"a block of a cluster would read {(units - kept) * of_unit} bytes of weights in each step"
        )
    return Division(blocks, units, kept, rows, choices.recurrent_warps)


def cuda_recurrent(layer: Layer, division: Division, steps: Extent, batch: Extent, dtype: str) -> PrimFunc:
    """Return the scheduled PrimFunc of a layer.

    Its parameters are the projected inputs ``<T,B,G*H>`` of float32, the weights ``<G*H,H>``, then ``h`` and the
    further operands of ``layer.operands``. The results are ``y`` <T,B,H>, the last state <B,H>, and an LSTM's last
    cell state.

    Args:
        layer: the layer.
        division: its division.
        steps, batch: extents T and B, which may be symbolic.
        dtype: type of weights, states and results.
    """
    emitter = _Emitter(layer, division, steps, batch, dtype)
    with B.kernel() as body, ExitStack() as stack:
        emitter.emit(stack)
    return sound_for_gpu(compute_func(emitter.params, body[0]))


class _Emitter:
    def __init__(self, layer: Layer, division: Division, steps: Extent, batch: Extent, dtype: str):
        self.layer, self.cell, self.division, self.dtype = layer, layer.cell, division, dtype
        self.steps, self.batch = as_expr(steps), as_expr(batch)
        cell, hidden = layer.cell, layer.cell.hidden
        states = [self.batch, hidden]
        shapes: dict[str, Any] = {
            "x": [self.steps, self.batch, cell.gates * hidden],
            "r": [cell.gates * hidden, hidden],
            "h": states,
            "c": states,
            "peepholes": [3 * hidden],
            "product_bias": [hidden],
            "lengths": [self.batch],
        }
        types = {"x": FLOAT, "lengths": "int32"}
        inputs = [name for name in layer.operands if name in shapes]
        results = {"y": [self.steps, self.batch, hidden], "last": states}
        if cell.has_cell_state:
            results["last_cell"] = states
        self.of: dict[str, Buffer] = {
            name: tir.decl_buffer([as_expr(e) for e in shape], types.get(name, dtype), name)
            for name, shape in ({name: shapes[name] for name in inputs} | results).items()
        }
        self.params = [self.of[name] for name in (*inputs, *results)]

    # -- the kernel ------------------------------------------------------------------------------------------------
    def emit(self, stack: ExitStack) -> None:
        """Emit the kernel."""
        d, cell = self.division, self.cell
        count = compat.int_value(self.batch)
        tiles = tir.floordiv(self.batch + B.i64(d.rows - 1), B.i64(d.rows))
        launched = B.i64(-(-count // d.rows)) if count else tir.Max(tiles, B.i64(1))
        block = stack.enter_context(T.launch_thread("blockIdx.x", launched * B.i64(d.blocks)))
        stack.enter_context(T.launch_thread("clusterCtaIdx.x", B.i64(d.blocks)))
        thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(LANES * d.warps)))
        self.thread = thread
        self.warp, self.lane = tir.floordiv(thread, B.i64(LANES)), tir.floormod(thread, B.i64(LANES))
        self.first_unit = tir.floormod(block, B.i64(d.blocks)) * B.i64(d.units)
        self.first_row = tir.floordiv(block, B.i64(d.blocks)) * B.i64(d.rows)
        self.cluster = Cluster(d.blocks, tir.floormod(block, B.i64(d.blocks)))
        self.states = B.local([(2 + cell.two_products) * d.rows * cell.hidden], FLOAT, "states", "shared")
        self.cells = B.local(
            [self.turns(d.kept) + self.turns(d.units - d.kept)], FLOAT, "cells"
        )  # or update gates
        self.weights = B.local(
            [max(1, d.kept * cell.gates * cell.hidden)], self.dtype, "weights", "shared.dyn"
        )
        # A grid of no rows has one cluster, which leaves. The simplifier takes an extent for positive.
        some = None if count else as_c_type(self.batch, "int64") > 0
        with B.when(some):
            self._enter()
            with B.loop("serial", self.steps, "step") as step:
                for part in parts_of(cell, step):
                    self._part(part)
            self._leave()

    def turns(self, units: int) -> int:
        """Return the number of units that each warp computes in turn."""
        return -(-units // self.division.warps)

    def _strided(self, count: int, each: Callable[[Expr], None]) -> None:
        """Emit a loop in which the threads divide numbers below ``count``."""
        threads = LANES * self.division.warps
        with B.loop("serial", -(-count // threads), "part") as part:
            at = part * B.i64(threads) + self.thread
            with B.when(None if count % threads == 0 else at < count):
                each(at)

    def _row(self, row: Expr) -> Expr:
        """Return the row of the batch of a row of the cluster, or the last one behind the end."""
        return tir.min(self.first_row + row, self.batch - B.i64(1))

    def _wide(self, value: Expr) -> Expr:
        return value if self.dtype == FLOAT else tir.Cast(FLOAT, value)

    def _enter(self) -> None:
        """Load the first states, and the weights that stay."""
        d, cell, hidden = self.division, self.cell, self.cell.hidden

        def state(at: Expr) -> None:
            row, unit = tir.floordiv(at, B.i64(hidden)), tir.floormod(at, B.i64(hidden))
            B.store(self.states, self._wide(B.fetch(self.of["h"], self._row(row), unit)), [at])

        def cell_state(own: Own) -> None:
            state = B.fetch(self.of["c"], self._row(tir.min(self.lane, B.i64(d.rows - 1))), own.unit)
            B.store(self.cells, self._wide(state), [own.turn])

        def weight(at: Expr) -> None:
            k, gate = tir.floormod(at, B.i64(hidden)), tir.floordiv(at, B.i64(hidden))
            unit = self.first_unit + tir.floordiv(gate, B.i64(cell.gates))
            row = tir.floormod(gate, B.i64(cell.gates)) * B.i64(hidden) + unit
            with B.when(unit < hidden):
                B.store(self.weights, B.fetch(self.of["r"], row, k), [at])

        self._strided(d.rows * hidden, state)
        if cell.has_cell_state:
            self._each_unit(cell_state)
        if d.kept:
            self._strided(d.kept * cell.gates * hidden, weight)
        B.block_barrier()
        self.cluster.meet()  # nobody sends to a block that does not run yet

    def _leave(self) -> None:
        """Store the last states of the block's units."""
        d, hidden = self.division, self.cell.hidden
        last = tir.floormod(self.steps, B.i64(2)) * B.i64(d.rows * hidden)

        def stored(own: Own) -> None:
            with B.when(self._has_row()):
                to = [self.first_row + self.lane, own.unit]
                state = B.fetch(self.states, last + self.lane * B.i64(hidden) + own.unit)
                B.store(self.of["last"], self._narrow(state), to)
                if self.cell.has_cell_state:
                    B.store(self.of["last_cell"], self._narrow(B.fetch(self.cells, own.turn)), to)

        self._each_unit(stored)

    def _has_row(self) -> Expr:
        """Return whether the lane has a row of the batch."""
        return tir.And(self.lane < self.division.rows, self.first_row + self.lane < self.batch)

    def _each_unit(self, each: Callable[[Own], None]) -> None:
        """Emit loops in which the warps divide the units of the block: those whose weights stay, and the others."""
        d, before = self.division, 0
        for begin, end in ((0, d.kept), (d.kept, d.units)):
            if begin == end:
                continue
            with B.loop("serial", self.turns(end - begin), "turn") as turn:
                own = B.i64(begin) + turn * B.i64(d.warps) + self.warp
                unit = self.first_unit + own
                with B.when(tir.And(own < end, unit < self.cell.hidden)):
                    each(Own(own, unit, turn + B.i64(before), begin == 0 and d.kept > 0))
            before = self.turns(d.kept)

    def _narrow(self, value: Expr) -> Expr:
        return value if self.dtype == FLOAT else tir.Cast(self.dtype, value)

    # -- a step ----------------------------------------------------------------------------------------------------
    def _part(self, part: Part) -> None:
        """Emit a part of a step for all units of the block, and the exchange behind it."""
        self._each_unit(lambda own: self._unit(part, own))
        self.cluster.meet()

    def _unit(self, part: Part, own: Own) -> None:
        cell, rows = self.cell, self.division.rows
        time = self.steps - B.i64(1) - part.step if self.layer.backwards else part.step
        row = tir.min(self.lane, B.i64(rows - 1))
        inputs = [  # on their way while the products are computed
            B.cell(B.fetch(self.of["x"], time, self._row(row), B.i64(gate * cell.hidden) + own.unit), "input")
            for gate in part.gates
        ]
        sums = self._sums(part, own)
        products = [
            self._of_lane([B.fetch(sums, n * rows + i) for i in range(rows)]) for n in range(len(part.gates))
        ]
        with B.when(self.lane < rows):  # behind the end of the batch, its last row again
            self._cell(part, own, time, inputs, products)

    def _of_lane(self, values: Sequence[Expr]) -> Expr:
        """Return the value of the lane's row."""
        found = values[-1]
        for row in reversed(range(len(values) - 1)):
            found = tir.Select(tir.EQ(self.lane, B.i64(row)), values[row], found)
        return B.cell(found, "product")

    def _sums(self, part: Part, own: Own) -> Buffer:
        """Emit the products of the states and a unit's weights. All lanes have the sums of all gates and rows."""
        cell, rows, hidden = self.cell, self.division.rows, self.cell.hidden
        each = 4 if hidden % 4 == 0 else 1
        sums = B.local([len(part.gates) * rows], FLOAT, "sums")
        for i in range(len(part.gates) * rows):
            B.store(sums, compat.float_const(0.0, FLOAT), [B.i64(i)])
        which = B.i64(2) if part.second else tir.floormod(part.step, B.i64(2))
        base = which * B.i64(rows * hidden)

        def weights_of(gate: int, k: Expr) -> tuple[Buffer, list[Expr]]:
            if own.kept:
                return self.weights, [(own.number * B.i64(cell.gates) + B.i64(gate)) * B.i64(hidden) + k]
            return self.of["r"], [B.i64(gate * hidden) + own.unit, k]

        with B.loop("serial", -(-hidden // (LANES * each)), "piece") as piece:
            first = (piece * B.i64(LANES) + self.lane) * B.i64(each)
            with B.when(None if hidden % (LANES * each) == 0 else first < hidden):
                states = [
                    self._loaded(each, self.states, [base + B.i64(i * hidden) + first], "state")
                    for i in range(rows)
                ]
                for n, gate in enumerate(part.gates):
                    loaded = self._loaded(each, *weights_of(gate, first), "weight")
                    for i in range(rows):
                        total = B.fetch(sums, n * rows + i)
                        for v in range(each):
                            total = B.fetch(states[i], v) * self._wide(B.fetch(loaded, v)) + total
                        B.store(sums, total, [B.i64(n * rows + i)])
        for i in range(len(part.gates) * rows):
            for apart in (16, 8, 4, 2, 1):
                other = B.cell(
                    compat.intrinsic(
                        FLOAT, "tvm_warp_shuffle_xor", compat.const(2**32 - 1, "uint32"), B.fetch(sums, i),
                        *(compat.const(n, "int32") for n in (apart, LANES, LANES)),
                    ), "other",
                )  # fmt: skip
                B.store(sums, B.fetch(sums, i) + other, [B.i64(i)])
        return sums

    @staticmethod
    def _loaded(count: int, source: Buffer, at: Sequence[Expr], name: str) -> Buffer:
        """Load neighbouring elements from an index on."""
        made = B.local([count], compat.buffer_dtype(source), name)
        with B.loop("vectorized", count, "v") as v:
            B.store(made, B.fetch(source, *at[:-1], at[-1] + v), [v])
        return made

    def _cell(self, part: Part, own: Own, time: Expr, inputs: list[Expr], products: list[Expr]) -> None:
        """Emit the cell of a unit for the lane's row, and send its state to all blocks."""
        cell, d, of, values = self.cell, self.division, self.of, _Values()
        unit, at = own.unit, own.turn
        place = self.lane * B.i64(cell.hidden) + unit

        def state_at(which: Expr) -> Expr:
            return which * B.i64(d.rows * cell.hidden) + place

        row = self._row(self.lane)
        state = B.cell(B.fetch(self.states, state_at(tir.floormod(part.step, B.i64(2)))), "state")
        if cell.product_bias:
            products[-1] = values.apply("add", products[-1], self._wide(B.fetch(of["product_bias"], unit)))
        if cell.two_products and not part.second:
            update, operand = cell.first_half(values, inputs, products, state)
            B.store(self.cells, update, [at])
            self._send(operand, state_at(B.i64(2)))
            return
        before, after = None, None
        if cell.two_products:
            result = cell.second_half(
                values, inputs[0], products[0], B.cell(B.fetch(self.cells, at), "update"), state
            )
        else:
            before = B.cell(B.fetch(self.cells, at), "before") if cell.has_cell_state else None
            seen = range(3) if cell.peepholes else ()
            peepholes = [
                B.cell(self._wide(B.fetch(of["peepholes"], B.i64(n * cell.hidden) + unit)), "peephole")
                for n in seen
            ]
            result, after = cell.step(values, inputs, products, state, before, peepholes)
        shown = result
        if self.layer.masked:
            inside = tir.LT(tir.Cast("int32", time), B.fetch(of["lengths"], row))
            shown = B.cell(tir.Select(inside, result, compat.float_const(0.0, FLOAT)), "shown")
            result = B.cell(tir.Select(inside, result, state), "result")
            after = None if after is None else B.cell(tir.Select(inside, after, before), "after")
        if after is not None:
            B.store(self.cells, after, [at])
        self._send(result, state_at(tir.floormod(part.step + B.i64(1), B.i64(2))))
        with B.when(self._has_row()):
            B.store(of["y"], self._narrow(shown), [time, row, unit])

    def _send(self, value: Expr, at: Expr) -> None:
        """Store a float at one place of the shared memory of all blocks of the cluster."""
        address = tir.address_of(B.fetch(self.states, at))
        name = f"tvm_stitch_sent_to_{self.division.blocks}"
        code = _SENT.format(name=name, blocks=self.division.blocks)
        B.evaluate(T.cuda.func_call(name, address, value, source_code=code))


@dataclass(frozen=True, eq=False)
class Own:
    """A unit of a block.

    Attributes:
        number: among the block's units.
        unit: among all units.
        turn: among those that its warp computes.
        kept: whether its weights stay in shared memory.
    """

    number: Expr
    unit: Expr
    turn: Expr
    kept: bool


class _Values:
    """The arithmetic of a kernel: each value is in a register."""

    def constant(self, value: float) -> Expr:
        return compat.float_const(value, FLOAT)

    def apply(self, operator: str, *operands: Expr) -> Expr:
        return B.cell(_OPERATORS[operator](*operands), operator)


_OPERATORS: dict[str, Callable[..., Expr]] = {
    "add": lambda a, b: DEVICE.binary(tir.Add, a, b),
    "subtract": lambda a, b: DEVICE.binary(tir.Sub, a, b),
    "multiply": lambda a, b: DEVICE.binary(tir.Mul, a, b),
    "divide": lambda a, b: DEVICE.binary(tir.Div, a, b),
    "maximum": lambda a, b: DEVICE.binary(tir.Max, a, b),
    "minimum": lambda a, b: DEVICE.binary(tir.Min, a, b),
    "abs": lambda x: DEVICE.called("fabs", tir.abs, x),
    "exp": lambda x: DEVICE.called("exp", tir.exp, x),
    "log": lambda x: DEVICE.called("log", tir.log, x),
    "tanh": lambda x: DEVICE.called("tanh", tir.tanh, x),
    "sigmoid": lambda x: DEVICE.called("sigmoid", tir.sigmoid, x),
    "zero_below": lambda least, x: tir.Select(tir.GT(x, least), x, compat.float_const(0.0, FLOAT)),
}

_SENT = """
__device__ __forceinline__ void {name}(const void* at, float value) {{
  const unsigned own = unsigned(__cvta_generic_to_shared(at));
#pragma unroll
  for (int block = 0; block < {blocks}; ++block) {{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(value) : "memory");
  }}
}}
"""
