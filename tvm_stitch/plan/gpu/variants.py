# SPDX-License-Identifier: Apache-2.0
"""Rows of symbolic length on a GPU: a mapping for any length, and variants for short rows, chosen at launch.

A short row stays in registers, and a longer one in shared memory. A variant maps its rows as rows of static length
that are as long as its bound. Missing columns are predicated. If a row's length turns out to be a multiple of a
vector's, another variant moves vectors. The longest rows are read again for every pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ... import compat
from ...compat import Var
from ...device import DeviceModel
from ...graph.extent import Extent, factors
from ..iteration.alignment import Alignment, Misaligned
from ..iteration.loops import Keep, LoopNest, schedule
from ..kernel import Stage, Variant
from ..slices import whole
from .tile import any_length, full_vector, map_rows, settled


def has_symbolic_rows(alignment: Alignment, sched: LoopNest) -> bool:
    """Return whether some rows have an unknown length."""
    return not alignment.domain.flat and not all(isinstance(e, int) for e in sched.spaces)


def busy(alignment: Alignment, device: DeviceModel) -> Alignment:
    """Return the alignment, after a check that few rows of symbolic length, a block each, delay nothing.

    Raises:
        Misaligned: when an output needs no reduction, and there are fewer rows than multiprocessors.
    """
    rows = alignment.domain.rows
    if not isinstance(rows, int) or rows >= device.sms or not alignment.graph.reduces:
        return alignment
    for op, point in alignment.roots:
        if op.is_reduce or isinstance(point.columns, int) or alignment.level[(op, point)]:
            continue
        raise Misaligned(
            f"output {op.name} needs no reduction, and {rows} rows of unknown length would leave the device idle"
        )
    return alignment


def stages_by_length(
    alignment: Alignment, sched: LoopNest, device: DeviceModel
) -> tuple[Stage, tuple[Variant, ...]]:
    """Return the stage that serves rows of any length, and variants in the order in which they are tried.

    ``sched`` is the schedule that keeps all it can.
    """
    nothing = schedule(alignment, Keep.NOTHING)
    general = Stage(whole(alignment), nothing, any_length(alignment, nothing, device))
    variants = []
    for longest in device.choices.symbolic_lengths if alignment.graph.reduces else ():
        for multiples in _multiples(sched, device) if longest > device.choices.scalar_length else [()]:
            aligned = replace(alignment, domain=alignment.domain.of_multiples(multiples))
            mapped = map_rows(aligned, sched, device, longest=longest)
            kept, mapping = settled(aligned, sched, mapped, device)
            if mapping.keep:
                variants.append(Variant(longest, Stage(whole(aligned), kept, mapping), multiples))
    return general, tuple(variants)


def _multiples(sched: LoopNest, device: DeviceModel) -> Iterator[tuple[tuple[Var, int], ...]]:
    """Yield the numbers that divide the symbols if vectors move all rows, if there are such, then nothing."""
    needed: dict[Var, int] = {}
    for columns in sched.spaces:
        if isinstance(columns, int):
            continue
        symbol, number = _symbol(columns)
        vector = full_vector(sched, columns, device)
        while number % 2 == 0 and vector > 1:
            number, vector = number // 2, vector // 2
        if symbol is not None:
            needed[symbol] = max(vector, needed.get(symbol, 1))
    chosen = tuple((symbol, vector) for symbol, vector in needed.items() if vector > 1)
    if chosen:
        yield chosen
    yield ()


def _symbol(columns: Extent) -> tuple[Var | None, int]:
    """Return a symbol that the extent is a multiple of, if there is one, and the constant factor."""
    number, others = factors(columns)
    return next((e for e in others if compat.kind(e) in ("Var", "SizeVar")), None), number
