# SPDX-License-Identifier: Apache-2.0
"""bfloat16 in registers as float32: two elements lie in a word, one is shifted up, of the other the rest is cleared.

That is one instruction an element. NVIDIA's compiler takes the upper element out of the word first, which makes it
three for two elements.
"""

from __future__ import annotations

from .... import compat
from ....compat import Buffer, Expr, tir
from ... import builder as B


def widened(words: Buffer, element: Expr) -> Expr:
    """An element as float32; of two in a word the first is the lower half.

    Which half it is must be known once loops are unrolled: a choice would stay in the kernel.
    """
    word = B.fetch(words, tir.floordiv(element, B.i64(2)))
    upper = tir.bitwise_and(word, compat.const(0xFFFF0000, "uint32"))
    lower = tir.shift_left(word, compat.const(16, "uint32"))
    first = tir.EQ(tir.floormod(element, B.i64(2)), B.i64(0))
    return tir.call_pure_extern("float32", "__uint_as_float", tir.Select(first, lower, upper))
