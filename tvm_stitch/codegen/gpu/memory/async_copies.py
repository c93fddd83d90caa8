# SPDX-License-Identifier: Apache-2.0
"""Stage the inputs that a row keeps in shared memory by cp.async.

All of a thread's copies are in flight at once and need no registers. So several blocks share a multiprocessor and
hide each other's latencies. A load through registers would wait for its data before the store. A thread waits for its
own copies and reads nothing else, so no block barrier is needed.
"""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, T, tir
from ....graph.dtype import item_bytes
from ....plan.gpu.mapping import ColumnMapping
from ....plan.iteration.loops import Leaf, RowLoop
from ....plan.layout import SharedBuffer
from ... import builder as B
from ...evaluator import input_indices
from .row_memory import RowMemory


def begin_copies(emitter: RowMemory) -> dict[Leaf, Buffer]:
    """Begin the copies of the plan. Return the buffer in shared memory of each input."""
    begun = {leaf: _begin(emitter, leaf, buffer) for leaf, buffer in emitter.stage.layout.copies.items()}
    if begun:
        B.evaluate(T.ptx.cp.async_.commit_group())
    return begun


def wait_for_copies(emitter: RowMemory) -> None:
    """Wait until the thread's own copies have arrived."""
    if emitter.async_copies:
        B.evaluate(T.ptx.cp.async_.wait_all())


def read_copies(emitter: RowMemory, p: RowLoop, cm: ColumnMapping, position: Expr) -> None:
    """Load one vector of each input that a pass needs into registers."""
    for leaf, stage in emitter.async_copies.items():
        if leaf not in p.loads:
            continue
        tile = emitter.input_tile(leaf, cm.vector)
        piece = emitter.input_piece(leaf)
        with B.loop("unroll", cm.vector // piece, "part") as part:
            with B.loop("vectorized", piece, "v") as v:
                element = part * B.i64(piece) + v
                B.store(tile, B.fetch(stage, position + element), [element])
        emitter.load_tiles[leaf] = tile


def _begin(emitter: RowMemory, leaf: Leaf, buffer: SharedBuffer) -> Buffer:
    """Begin the copies of an input to a buffer."""
    tensor, point = leaf
    p = emitter.stage.schedule.loading(leaf)
    cm = emitter.mapping.of(p.columns)
    piece = emitter.input_piece(leaf)
    size = piece * item_bytes(buffer.dtype)
    stage = B.dynamic(buffer)
    indices = input_indices(emitter.al, tensor, point)
    cached = T.ptx.cp.async_.cg if size == 16 else T.ptx.cp.async_.ca
    policy = emitter.policy_of(leaf, piece)
    copy = cached.shared.global_ if policy is None else cached.shared.global_.L2__cache_hint
    hint = () if policy is None else (policy,)
    with B.loop("unroll", cm.steps, "step") as step, B.loop("unroll", cm.chunks, "chunk") as chunk:
        base = emitter.inside(emitter.base(cm, step, chunk), p.columns, cm)
        position = emitter.position(cm, step, chunk)
        with B.loop("unroll", cm.vector // piece, "part") as part:
            column = base + part * B.i64(piece)
            where, memory = emitter.vector_at(emitter.buffers.of(tensor), indices, column, piece)
            to = tir.address_of(B.fetch(stage, position + part * B.i64(piece)))
            source = tir.address_of(compat.load(memory, where))
            B.evaluate(
                copy.L2__128B(  # neighbours read the rest of the line next
                    T.cuda.cvta_generic_to_shared(to), source, size, compat.const(size, "uint32"), *hint
                )
            )
    return stage
