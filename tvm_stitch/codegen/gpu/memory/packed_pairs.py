# SPDX-License-Identifier: Apache-2.0
"""Read bfloat16 in registers as float32, from words of two elements: one is shifted up, the other masked.

That is one instruction an element. NVIDIA's compiler first extracts the upper element from the word, which takes
three instructions for two elements.
"""

from __future__ import annotations

from collections.abc import Iterable

from .... import compat
from ....compat import Buffer, Expr, tir
from ... import builder as B


def widened(words: Buffer, element: Expr) -> Expr:
    """Return an element as float32. The first of the two elements in a word is the lower half.

    The half must be known once loops are unrolled. Otherwise a choice would stay in the kernel.
    """
    word = B.fetch(words, tir.floordiv(element, B.i64(2)))
    upper = tir.bitwise_and(word, compat.const(0xFFFF0000, "uint32"))
    lower = tir.shift_left(word, compat.const(16, "uint32"))
    first = tir.EQ(tir.floormod(element, B.i64(2)), B.i64(0))
    return tir.call_pure_extern("float32", "__uint_as_float", tir.Select(first, lower, upper))


def hold_pairs(tiles: Iterable[Buffer]) -> None:
    """Keep the memory of tiles that are read as words until here.

    TVM lets a tile that is stored in a loop take the memory of one that the loop reads for the last time. It looks
    whether each element is read before it is stored, but it does not see reads through a view of other elements. So a
    second result could be computed from elements of the first one. TVM removes these loads itself later.
    """
    for words in tiles:
        B.evaluate(B.fetch(words, 0))
