# SPDX-License-Identifier: Apache-2.0
"""The base of the CPU emitters: the evaluator's reader, row buffers, and the work on one piece of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ... import compat
from ...compat import Buffer, Expr, tir
from ...graph.classify import is_heavy
from ...graph.extent import Extent, product
from ...graph.ir import Access, Operator
from ...plan.cpu.tile import CpuMapping
from ...plan.iteration.alignment import Key
from ...plan.iteration.domain import Point
from ...plan.iteration.loops import Leaf, RowLoop
from ...plan.kernel import Stage
from ...repairs.tir.arithmetic import FLOATS, HOST
from ...repairs.tir.truncated import signed_symbols
from .. import builder as B
from ..combine import NODES, accumulator_dtype, combine, identity
from ..evaluator import compute_dtype, convert, input_indices
from ..vector_math import keeping_nan, lower_math
from .half import lower_rounding, rounds, stored_as
from .index_context import ContextEvaluator, IndexContext
from .lanes import LaneWriter, from_held, held, to_held
from .tasks import few_points, task_loop


@dataclass(frozen=True)
class Computed:
    """Values and elements of inputs that are already computed for the lanes of a piece."""

    values: Mapping[Key, Expr] = field(default_factory=dict)
    loaded: Mapping[Leaf, Expr] = field(default_factory=dict)


class CpuEmitter:
    """Evaluates values for the lanes of a piece (``self.lanes`` set), or as scalars (``self.lanes`` None)."""

    def __init__(self, stage: Stage):
        assert isinstance(stage.mapping, CpuMapping)
        self.al = stage.alignment
        self._rounds = rounds(self.al.graph)
        self.mapping: CpuMapping = stage.mapping
        self._stage = stage
        self.domain = stage.alignment.domain
        self.sched = stage.schedule
        self.signed = signed_symbols(self.al.graph)
        self.tiles: dict[Key, Buffer] = {}
        self.ready: set[Key] = set()
        self.loaded: dict[Leaf, Expr] = {}
        self.lanes: LaneWriter | None = None
        self.binder = B.Binder(stage.bound_weight, B.STACK)
        self.eval = self.evaluator(B.i64(0))

    def evaluator(self, row: Expr) -> ContextEvaluator:
        """Return an evaluator of the given row."""
        return ContextEvaluator(self.al, row, self, self.math)

    def math(self, value: Expr) -> Expr:
        """Lower math calls to polynomials, and decide conditions.

        The shared parts of a polynomial are bound where the value is.
        """
        value = self._decide(value)
        return self._round(lower_math(value, lambda part: self._name(self._round(part))))

    def _decide(self, value: Expr) -> Expr:
        """Resolve conditions that are constant over the whole slice. Branch on conditions that all lanes share."""
        if not compat.is_choice(value):
            return compat.rebuild(value, self._decide)
        condition, yes, no = value.args
        if self.eval.frame is not None and self.lanes is not None:
            condition = self.eval.frame.simplify(condition)
        known = compat.int_value(condition)
        if known is not None:
            return self._decide(yes if known else no)
        dtype = compat.dtype_of(value)
        if self.lanes is None:
            cell = B.stack([1], held(dtype), "chosen")
            B.either(
                condition,
                lambda: B.store(cell, to_held(self.math(yes)), [B.i64(0)]),
                lambda: B.store(cell, to_held(self.math(no)), [B.i64(0)]),
            )
            return from_held(B.fetch(cell, 0), dtype)
        lanes = self.lanes
        if lanes.differ(condition):
            if not is_heavy(value):
                return value
            chosen = lanes.buffer(held(dtype), "chosen")
            with B.loop("unroll" if lanes.wraps(value) else "serial", lanes.width, "l") as lane:
                self.lanes = None
                B.store(chosen, to_held(self.math(lanes.at(value, lane))), [lane])
                self.lanes = lanes
        else:
            chosen = lanes.buffer(held(dtype), "chosen")
            B.either(
                lanes.actual(condition),
                lambda: lanes.store(chosen, to_held(self.math(yes)), [lanes.lane]),
                lambda: lanes.store(chosen, to_held(self.math(no)), [lanes.lane]),
            )
        return from_held(compat.load(chosen, [lanes.lane]), dtype)

    def _round(self, value: Expr) -> Expr:
        return lower_rounding(value, self._name) if self._rounds else value

    def _name(self, part: Expr) -> Expr:
        return self.bind(part, "part")

    # -- Reader ------------------------------------------------------------------------------------------
    def guarded_input(self, access: Access, point: Point) -> Expr | None:
        return None

    def condition(self, key: Key, condition: Expr) -> Expr | None:
        return None

    def sum_of_window(self, key: Key, e: Expr) -> Expr | None:
        return None

    def kept(self, key: Key) -> Expr | None:
        """Return the value from its row buffer, once a whole pass has filled that buffer."""
        if key not in self.ready or self.eval.column is None:
            return None
        if key not in self.eval.column_cache:
            value = compat.load(self.tiles[key], self.slot())
            self.eval.column_cache[key] = from_held(value, compute_dtype(key[0].output.dtype))
        return self.eval.column_cache[key]

    def input(self, access: Access, point: Point) -> Expr | None:
        """Return the input's element in the compute dtype. It is loaded once a piece."""
        if self.lanes is None or not point.per_column:
            return None
        leaf = (access.tensor, point)
        if leaf not in self.loaded:
            where = [self.eval.localize(i) for i in input_indices(self.al, access.tensor, point)]
            value = convert(compat.load(access.tensor.buffer, where), compute_dtype(access.tensor.dtype))
            self.loaded[leaf] = self.bind(value, access.tensor.name)
        return self.loaded[leaf]

    def bind(self, value: Expr, name: str) -> Expr:
        """Bind a value to a name: over the lanes if there are any, else as a scalar."""
        if self.lanes is not None:
            return self.lanes.bind(value, name)
        return from_held(self.binder.bind(to_held(value), name), compat.dtype_of(value))

    def emit(self) -> None:
        """Emit the whole kernel."""
        raise NotImplementedError

    def tasks(self, count: Extent) -> Any:
        """Open the loop over a number of tasks, parallel or serial."""
        few = few_points(self._stage, self.mapping) if self.mapping.parallel is None else None
        return task_loop(self.mapping.parallel, few, count)

    def slot(self) -> list[Expr]:
        """Return the indices of the current column in a row buffer."""
        raise NotImplementedError

    # -- a piece ------------------------------------------------------------------------------------------
    def new_tiles(self, shape_of: RowLoop, extra: int = 1) -> None:
        """Allocate the row buffers of the values that a pass keeps (``extra`` elements a column)."""
        size = product([shape_of.columns, extra])
        for key in shape_of.values:
            if key in self.sched.kept_values and key not in self.tiles:
                dtype = held(compute_dtype(key[0].output.dtype))
                # A row may have no columns, but a buffer needs at least one element.
                elements = size if isinstance(size, int) else tir.max(size, B.i64(1))
                self.tiles[key] = B.stack([elements], dtype, key[0].output.name)

    @contextmanager
    def piece(self, frame: IndexContext, column: Expr, known: Computed | None = None) -> Iterator[LaneWriter]:
        """Evaluate at a column, to which ``frame`` has moved, for all lanes. Values may be ``known`` there."""
        assert self.lanes is not None
        self.loaded = dict(known.loaded) if known else {}
        self.eval.at_column(column)
        self.eval.column_cache.update(known.values if known else {})
        before, self.eval.frame, self.lanes.frame = self.eval.frame, frame, frame
        yield self.lanes
        self.eval.frame = self.lanes.frame = before
        self.eval.at_column(None)
        self.loaded = {}

    def evaluate(self, p: RowLoop, fresh: list[Key]) -> None:
        """Compute the pass's values and outputs at the current column. Keep the values of ``fresh``."""
        lanes = self.lanes
        assert lanes is not None
        reduces = set(p.reduces)
        outputs = set(p.outputs)
        for key in p.values:
            if key[0] in reduces:
                continue
            value = self.eval.value(key)
            if key in fresh:
                lanes.store(self.tiles[key], to_held(value), self.slot())
            if key in outputs:
                op = key[0]
                lanes.store(op.output.buffer, self.stored(value, op.output.dtype), self.eval.indices(key))

    def stored(self, value: Expr, dtype: str) -> Expr:
        """Convert ``value`` to a tensor's element, a vector over lanes. TVM lowers no bfloat16 that lanes share."""
        if (
            dtype == "bfloat16"
            and compat.COMPUTES_BFLOAT16
            and self.lanes is not None
            and self.lanes.width > 1
        ):
            if not (compat.is_load(value) and compat.load_buffer(value) in self.lanes.own):
                value = self.lanes.broadcast(value, "stored")
        return stored_as(value, dtype)

    def accumulate(self, p: RowLoop, accumulators: list[Buffer], at: Expr, mask: Expr | None = None) -> None:
        """Combine the reductions' operands into their accumulators. Lanes outside ``mask`` add nothing."""
        assert self.lanes is not None
        for op, acc in zip(p.reduces, accumulators, strict=True):
            value = self.eval.operand(op)
            if mask is not None:
                value = tir.Select(mask, value, identity(op))
            if op.combiner in ("max", "min"):  # used several times
                value = self.bind(value, "operand")
            self.lanes.store(acc, merged(op, compat.load(acc, [at]), to_held(value)), [at])

    def fresh_tiles(self, p: RowLoop) -> list[Key]:
        """Return the values that this pass computes first and that later passes read."""
        return [k for k in p.values if k in self.sched.kept_values and k not in self.ready]

    def store_row_outputs(self) -> None:
        """Evaluate the values after the last pass, and write the outputs that have one element a row."""
        for key in self.sched.final_values:
            self.eval.bind_row(key)
        for key in self.sched.row_outputs:
            op = key[0]
            value = self.stored(self.eval.value(key), op.output.dtype)
            if self.lanes is None:
                B.store(op.output.buffer, value, self.eval.indices(key))
            else:
                self.lanes.store(op.output.buffer, value, self.eval.indices(key))


def merged(op: Operator, a: Expr, b: Expr) -> Expr:
    """Combine two partial results of a reduction, all in the dtype of buffers. ``b`` is a load."""
    dtype = accumulator_dtype(op)
    a, b = from_held(a, dtype), from_held(b, dtype)
    if dtype in FLOATS and op.combiner in ("max", "min"):
        return keeping_nan(NODES[op.combiner], a, b)
    return to_held(combine(op.combiner or "", a, b, HOST))


def accumulator(op: Operator, extent: Extent, name: str) -> Buffer:
    """Allocate a buffer for partial results of a reduction."""
    return B.stack([extent], held(accumulator_dtype(op)), f"{op.output.name}_{name}")


def fold(op: Operator, acc: Buffer, width: int) -> Expr:
    """Combine the ``width`` (a power of two) lanes of an accumulator, which is overwritten."""
    half = width // 2
    while half >= 4:
        with B.loop("vectorized", half, "v") as v:
            B.store(acc, merged(op, B.fetch(acc, v), B.fetch(acc, v + B.i64(half))), [v])
        half //= 2
    parts = [B.fetch(acc, e) for e in range(min(width, 4))]
    while len(parts) > 1:
        parts = [merged(op, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    total = accumulator(op, 1, "total")
    B.store(total, parts[0], [B.i64(0)])
    return B.fetch(total, 0)


def extent_min(limit: int, left: Expr) -> Expr:
    """Return the minimum of a constant and the remaining count."""
    return tir.min(B.i64(limit), left)
