# SPDX-License-Identifier: Apache-2.0
"""Load inputs that are read below conditions: decide once for each vector of columns, and load vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from .... import compat
from ....compat import Buffer, Expr, tir
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.alignment import Key
from ....plan.iteration.guarded_loads import Condition, GuardedLoad, GuardedLoads, Path, Slot
from ....plan.iteration.loops import Leaf, RowLoop
from ... import builder as B
from ...evaluator import input_indices

if TYPE_CHECKING:
    from .row_memory import RowMemory


@dataclass(frozen=True, eq=False)
class Loaded:
    """Tiles of a thread's columns that were loaded below conditions, and the conditions, which hold for them or not.

    An element of a tile whose conditions do not hold is 0, or an element of another input.
    """

    plan: GuardedLoads = field(default_factory=lambda: GuardedLoads((), {}, ()))
    tiles: Mapping[Leaf, Buffer] = field(default_factory=dict)
    flags: Sequence[Buffer] = ()

    def decided(self, key: Key, condition: Expr, element: Expr) -> Expr | None:
        """Return whether an operator's condition holds for an element of the tiles. None if that is not known."""
        if not self.plan.numbers:
            return None
        number = self.plan.numbers.get((key, compat.expression_key(condition)))
        if number is None or isinstance(number, bool):
            return None if number is None else compat.const(number, "bool")
        return self.holds(number, element)

    def holds(self, number: int, element: Expr) -> Expr:
        """Return whether a condition holds for an element of the tiles."""
        position = tir.floordiv(element, B.i64(self.plan.conditions[number].columns))
        return tir.NE(B.fetch(self.flags[number], position), compat.const(0, "int32"))


def load_guarded(
    memory: RowMemory, p: RowLoop, cm: ColumnMapping, step: Expr, values: Sequence[Key]
) -> Loaded:
    """Decide the conditions of the values of a pass for a thread's columns, and load the inputs below them.

    The terms of sums are loaded when they are added up (``window_sums.py``).
    """
    if memory.guarded or cm.vector == 1:
        return Loaded()
    plan = memory.stage.guarded_loads(p, values)
    if not plan.numbers:
        return Loaded()
    size = cm.chunks * cm.vector
    loaded = Loaded(
        plan,
        {
            load.leaf: tile
            for slot in plan.all_slots
            for tile in [_tile(memory, slot, size)]
            for load in slot.loads
        },
        [B.local([size // c.columns], "int32", "holds") for c in plan.conditions],
    )
    with B.loop("unroll", cm.chunks, "chunk") as chunk:
        base = memory.base(cm, step, chunk)
        # With tiles in shared memory, columns past the row's end are evaluated too: as the row's last vector.
        tail = None if memory.mapping.shared else memory._tail(p.columns, base)
        base = memory.inside(base, p.columns, cm)
        with B.when(tail):
            start = chunk * B.i64(cm.vector)
            for condition, flag in zip(plan.conditions, loaded.flags):
                _decide(memory, condition, flag, cm, base, start)
            for slot in plan.slots:
                load_slot(memory, loaded, slot, cm, base, start)
    return loaded


def load_slot(
    memory: RowMemory, loaded: Loaded, slot: Slot, cm: ColumnMapping, column: Expr, start: Expr
) -> None:
    """Load a slot's elements of a vector of columns into its tile, from the position ``start`` of the tile on."""
    with B.loop("unroll", cm.vector // slot.columns, "part") as part:
        skipped = part * B.i64(slot.columns)
        _fill(memory, loaded, slot, slot.loads, {}, column + skipped, start + skipped)


def _tile(memory: RowMemory, slot: Slot, size: int) -> Buffer:
    tensor, _ = slot.loads[0].leaf
    return B.local([size], memory.buffers.dtype(tensor), f"{tensor.name}_in")


def _decide(
    memory: RowMemory, condition: Condition, flag: Buffer, cm: ColumnMapping, base: Expr, start: Expr
) -> None:
    width = condition.columns
    with B.loop("unroll", cm.vector // width, "part") as part:
        here = memory.eval.at(condition.value, memory.eval.row, base + part * B.i64(width))
        B.store(flag, tir.Cast("int32", here), [tir.floordiv(start, B.i64(width)) + part])


def _fill(
    memory: RowMemory, loaded: Loaded, slot: Slot, loads: Sequence[GuardedLoad], known: Mapping[int, bool],
    column: Expr, start: Expr,
) -> None:  # fmt: skip
    """Emit the load of the first input whose conditions hold, or zeros. ``known`` has the conditions decided so far."""
    tile = loaded.tiles[slot.loads[0].leaf]
    if not loads:
        with B.loop("unroll", slot.columns, "v") as v:
            B.store(tile, compat.const(0, compat.buffer_dtype(tile)), [start + v])
        return
    paths = [path for each in loads[0].paths if (path := _open(each, known)) is not None]
    if not paths:
        _fill(memory, loaded, slot, loads[1:], known, column, start)
        return
    if not all(paths):
        _copy(memory, slot, loads[0], tile, column, start)
        return
    later = dict(known)
    if len(paths) == len(paths[0]) == 1:
        ((number, holds),) = paths[0]
        later[number] = not holds
    B.either(
        _any_holds(loaded, paths, start),
        lambda: _copy(memory, slot, loads[0], tile, column, start),
        lambda: _fill(memory, loaded, slot, loads[1:], later, column, start),
    )


def _open(path: Path, known: Mapping[int, bool]) -> Path | None:
    """Return the literals of a path that are not decided yet, or None if one does not hold."""
    if any(number in known and known[number] is not holds for number, holds in path):
        return None
    return frozenset((number, holds) for number, holds in path if number not in known)


def _any_holds(loaded: Loaded, paths: Sequence[Path], start: Expr) -> Expr:
    def all_hold(path: Path) -> Expr:
        literals = ((loaded.holds(number, start), holds) for number, holds in sorted(path))
        return reduce(tir.And, (flag if holds else tir.Not(flag) for flag, holds in literals))

    return reduce(tir.Or, map(all_hold, paths))


def _copy(memory: RowMemory, slot: Slot, load: GuardedLoad, tile: Buffer, column: Expr, start: Expr) -> None:
    tensor, point = load.leaf
    indices = input_indices(memory.al, tensor, point)
    where, source = memory.vector_at(memory.buffers.of(tensor), indices, column, slot.columns)
    memory._copy_piece(source, where, tile, start, slot.columns, True)
