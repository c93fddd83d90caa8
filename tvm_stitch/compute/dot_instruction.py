# SPDX-License-Identifier: Apache-2.0
"""Instructions that multiply several neighbouring elements of a half type at once, and add the products to float32.

Intel's AVX512-BF16 adds two products of bfloat16 to each element of a vector (``vdpbf16ps``). Products are exact;
additions round to nearest; denormal factors and sums count as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import compat
from ..codegen import builder as B
from ..compat import Expr, T, tir
from ..target import has_feature, llvm_version

FEATURE = "avx512bf16"
"""LLVM's name of what a CPU must have."""

BITS = "uint16"
"""The type of an element's bits."""

LLVM_VERSION = 17
"""Since then LLVM's intrinsics take vectors of bfloat16 by that name."""


@dataclass(frozen=True)
class DotInstruction:
    """Adds the products of ``group`` elements of the depth to each of ``lanes`` sums.

    Attributes:
        name: of the function that holds the instruction in the kernel.
        intrinsic: LLVM's name of it.
        dtype: of the factors.
        group: elements of the depth.
        lanes: float32 elements of a vector.
    """

    name: str
    intrinsic: str
    dtype: str
    group: int
    lanes: int

    def steps(self, depth: int) -> int:
        """Groups that a depth has, the last one filled up with zeros."""
        return -(-depth // self.group)

    def add(self, sums: Expr, left: Expr, right: Expr) -> Expr:
        """A vector of sums with the products added.

        Args:
            sums: ``lanes`` elements of float32.
            left: the group of the left side that all sums share, ``group`` elements of ``dtype``, or their bits.
            right: the same of the right side for each sum, ``lanes * group`` elements.
        """
        words = [tir.reinterpret("int32", left), tir.reinterpret(f"int32x{self.lanes}", right)]
        return tir.call_pure_extern(f"float32x{self.lanes}", self.name, sums, *words)

    def place_of(self, column: Expr) -> Expr:
        """Where a step of a packed weight has the groups of a vector of columns, from the first one on."""
        return vector(column * B.i64(self.group), self.lanes * self.group)

    @contextmanager
    def declared(self) -> Iterator[None]:
        """What is emitted meanwhile can use the instruction."""
        with T.attr(compat.const(0, "int32"), "pragma_import_llvm", compat.string(self._source())):
            yield

    def _source(self) -> str:
        """The function in LLVM's language: TVM inlines it wherever it is called."""
        sums, words = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        factors = f"<{self.lanes * self.group} x bfloat>"
        return f"""\
declare {sums} @{self.intrinsic}({sums}, {factors}, {factors})
define {sums} @{self.name}({sums} %sums, i32 %left, {words} %right) {{
  %first = insertelement {words} poison, i32 %left, i64 0
  %each = shufflevector {words} %first, {words} poison, {words} zeroinitializer
  %a = bitcast {words} %each to {factors}
  %b = bitcast {words} %right to {factors}
  %added = call {sums} @{self.intrinsic}({sums} %sums, {factors} %a, {factors} %b)
  ret {sums} %added
}}
"""


def dot_instruction(target: Any, dtypes: tuple[str, str], lanes: int) -> DotInstruction | None:
    """The instruction of a target for factors of these types in vectors of ``lanes`` sums; None where it has none."""
    if dtypes != ("bfloat16", "bfloat16") or lanes not in (4, 8, 16):
        return None
    if not compat.COMPUTES_BFLOAT16 or not has_feature(target, FEATURE) or llvm_version() < LLVM_VERSION:
        return None
    intrinsic = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    return DotInstruction(f"tvm_stitch_dot_bfloat16x{lanes}", intrinsic, "bfloat16", 2, lanes)


def bits(value: Expr) -> Expr:
    """What a kernel keeps of an element in a buffer of its own: TVM makes float32 of those of half types."""
    if compat.kind(value) == "FloatImm":  # a value of bfloat16: the upper half of its float32
        return compat.const(int(np.float32(value.value).view(np.uint32)) >> 16, BITS)
    return tir.reinterpret(BITS, value)


def vector(first: Expr, lanes: int) -> Expr:
    """The places of ``lanes`` neighbours, from the first one on."""
    return tir.Ramp(first, B.i64(1), lanes)
