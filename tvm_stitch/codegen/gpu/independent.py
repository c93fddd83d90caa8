# SPDX-License-Identifier: Apache-2.0
"""Load early what a row reads behind its reductions and that depends on none: a label, the element that it picks.

Such loads follow each other, the index before the element, and at the end of a block nothing else hides the time that
they take. NVIDIA's compiler may move a load down to its use again, so the index is brought into the cache first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ... import compat
from ...compat import Expr, T, has_load, tir
from .. import builder as B

if TYPE_CHECKING:
    from .rows import RowEmitter


def prefetch_indices(emitter: RowEmitter) -> None:
    """Bring the elements that tell where others are into the second-level cache; one thread of a row does."""
    if emitter.guarded or not compat.COPIES_IN_BACKGROUND:  # there may be no row to read from; old TVMs know no PTX
        return
    found: list[Expr] = []
    for key in emitter.stage.schedule.independent:
        value = emitter.eval.value(key)
        if not any(_gathers(load) for load in _certain_loads(value)):
            continue
        for load in _certain_loads(value):
            found += [e for i in compat.elements(load.indices) for e in _certain_loads(i) if not _gathers(e)]
    once = [e for i, e in enumerate(found) if not any(compat.structural_equal(e, other) for other in found[:i])]
    if not once:
        return
    with B.when(tir.EQ(emitter.lane, B.i64(0)) if emitter.mapping.threads > 1 else None):
        for load in once:
            B.evaluate(T.ptx.prefetch.global_.L2(T.address_of(load)))


def _certain_loads(e: Expr) -> Iterator[Expr]:
    """The loads of an expression that no condition guards, outermost first."""
    if compat.is_load(e):
        yield e
    for part in compat.operands(e)[:1] if compat.is_choice(e) else compat.operands(e):
        yield from _certain_loads(part)


def _gathers(load: Expr) -> bool:
    return any(map(has_load, compat.elements(load.indices)))
