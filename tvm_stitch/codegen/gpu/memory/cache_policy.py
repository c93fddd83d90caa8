# SPDX-License-Identifier: Apache-2.0
"""Loads with L2 residency: the second-level cache keeps their lines longest (createpolicy, evict_last)."""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, T, tir
from ....graph.dtype import item_bytes
from ... import builder as B

WORD = 4
"""Bytes of a register."""


def residency_policy() -> Expr:
    """Create a policy under which lines are evicted last. It costs no instruction in a loop."""
    policy = B.local([1], "uint64", "lasting")
    B.evaluate(T.ptx.createpolicy.fractional.L2__evict_last.b64(policy[0]))
    return policy[0]


def loads_words(dtype: str, piece: int) -> bool:
    """Return True if one access of ``piece`` elements fills one, two or four registers, as these loads must."""
    return piece * item_bytes(dtype) in (WORD, 2 * WORD, 4 * WORD)


def load_resident(
    memory: Buffer, where: list[Expr], tile: Buffer, start: Expr, piece: int, policy: Expr
) -> None:
    """Load ``piece`` elements into a tile from element ``start`` on, which is the first of a register."""
    size = item_bytes(compat.buffer_dtype(tile))
    registers = piece * size // WORD
    is_float = compat.buffer_dtype(tile) == "float32"  # a b32 load cannot write a float
    words = tile if is_float else B.words_of(tile)
    first = start * B.i64(size // WORD) if size >= WORD else tir.floordiv(start, B.i64(WORD // size))
    load = T.ptx.ld.global_.L2__cache_hint
    load = getattr(load if registers == 1 else getattr(load, f"v{registers}"), "f32" if is_float else "b32")
    into = [words[first + B.i64(i)] for i in range(registers)]
    B.evaluate(load(*into, tir.address_of(compat.load(memory, where)), policy))
