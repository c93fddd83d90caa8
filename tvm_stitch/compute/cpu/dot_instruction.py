# SPDX-License-Identifier: Apache-2.0
"""Instructions of x86 that multiply several neighbouring elements at once, and add the products to one wider sum.

- AVX512-BF16 adds two products of bfloat16 to each float32 of a vector (``vdpbf16ps``). Products are exact; additions
  round to nearest; denormal factors and sums count as zero.
- AVX512-VNNI and AVX-VNNI add four products of an unsigned and a signed byte to each int32 (``vpdpbusd``).
- All others of SSE2, AVX2 and AVX-512 multiply two pairs of 16 bits (``pmaddwd``), as which other bytes are kept. The
  instruction that multiplies bytes before VNNI (``pmaddubsw``) adds in 16 bits, which is too few.

Sums of integers are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import compat
from ...codegen import builder as B
from ...compat import Expr, T, tir
from ...graph.dtype import BYTES
from ...target import has_feature, llvm_version

BITS = "uint16"
"""The type of a bfloat16's bits."""

LLVM_VERSION = 17
"""Since then LLVM's intrinsics take vectors of bfloat16 by that name."""


@dataclass(frozen=True)
class DotInstruction:
    """Adds the products of ``group`` elements of the depth to each of ``lanes`` sums.

    Attributes:
        name: of the function that holds the instruction in the kernel.
        source: that function in LLVM's language, of a vector of sums, the left side's group as an int32, and a vector
            of int32 of the right side's groups; and what it needs.
        left: the type of which the left side's elements are multiplied.
        right: the type that a packed weight has.
        reads: the type of a left side that is multiplied as it lies, uncopied.
        sums: the type of the sums.
        group: elements of the depth.
        lanes: elements of a vector of sums.
    """

    name: str
    source: str
    left: str
    right: str
    reads: str
    sums: str
    group: int
    lanes: int

    def steps(self, depth: int) -> int:
        """Groups that a depth has, the last one filled up with zeros."""
        return -(-depth // self.group)

    def add(self, sums: Expr, left: Expr, right: Expr) -> Expr:
        """Return a vector of sums with the products added.

        Args:
            sums: ``lanes`` elements.
            left: the group of the left side that all sums share, ``group`` elements.
            right: the same of the right side for each sum, ``lanes * group`` elements.
        """
        words = [tir.reinterpret("int32", left), tir.reinterpret(f"int32x{self.lanes}", right)]
        return tir.call_pure_extern(f"{self.sums}x{self.lanes}", self.name, sums, *words)

    def place_of(self, column: Expr) -> Expr:
        """Where a step of a packed weight has the groups of a vector of columns, from the first one on."""
        return vector(column * B.i64(self.group), self.lanes * self.group)

    @contextmanager
    def declared(self) -> Iterator[None]:
        """What is emitted meanwhile can use the instruction: TVM inlines it wherever it is called."""
        with T.attr(compat.const(0, "int32"), "pragma_import_llvm", compat.string(self.source)):
            yield


def dot_instruction(target: Any, dtypes: tuple[str, str], lanes: int) -> DotInstruction | None:
    """The instruction of a target for factors of these types in vectors of ``lanes`` sums; None where it has none."""
    if lanes not in (4, 8, 16) or llvm_version() < LLVM_VERSION:
        return None
    if dtypes == ("bfloat16", "bfloat16"):
        if not compat.COMPUTES_BFLOAT16 or not has_feature(target, "avx512bf16"):
            return None
        return _bfloat16(lanes)
    if not set(dtypes) <= set(BYTES):
        return None
    if dtypes == ("uint8", "int8") and any(has_feature(target, name) for name in _vnni(lanes)):
        return _bytes(lanes)
    wanted = {4: "sse2", 8: "avx2", 16: "avx512bw"}[lanes]
    return _pairs(lanes) if has_feature(target, wanted) else None


def prefers_unsigned(target: Any, lanes: int) -> bool:
    """Whether a target multiplies bytes, for vectors of ``lanes`` sums, as unsigned ones by signed ones alone."""
    instruction = dot_instruction(target, ("uint8", "int8"), lanes)
    return instruction is not None and instruction.left == "uint8"


def _vnni(lanes: int) -> list[str]:
    """LLVM's names of what a CPU may have to multiply bytes."""
    return ["avx512vnni"] if lanes == 16 else ["avx512vnni", "avxvnni"]


def _bfloat16(lanes: int) -> DotInstruction:
    factors = f"<{2 * lanes} x bfloat>"
    sums = f"<{lanes} x float>"
    called = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    source = _function(
        "bfloat16", lanes, sums, factors, f"declare {sums} {called}({sums}, {factors}, {factors})", called
    )
    return DotInstruction(_name("bfloat16", lanes), source, BITS, "bfloat16", "bfloat16", "float32", 2, lanes)


def _bytes(lanes: int) -> DotInstruction:
    sums = f"<{lanes} x i32>"
    called = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    factors = f"<{4 * lanes} x i8>" if llvm_version() >= 22 else sums
    declared = f"declare {sums} {called}({sums}, {factors}, {factors})"
    source = _function("int8", lanes, sums, factors, declared, called)
    return DotInstruction(_name("int8", lanes), source, "uint8", "int8", "uint8", "int32", 4, lanes)


def _pairs(lanes: int) -> DotInstruction:
    sums, factors = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    called = {
        4: "@llvm.x86.sse2.pmadd.wd",
        8: "@llvm.x86.avx2.pmadd.wd",
        16: "@llvm.x86.avx512.pmaddw.d.512",
    }[lanes]
    name = _name("int16", lanes)
    source = f"""\
declare {sums} {called}({factors}, {factors})
define {sums} @{name}_added({sums} %sums, {factors} %a, {factors} %b) alwaysinline {{
  %products = call {sums} {called}({factors} %a, {factors} %b)
  %added = add {sums} %sums, %products
  ret {sums} %added
}}
"""
    source = _function("int16", lanes, sums, factors, source, f"@{name}_added")
    return DotInstruction(name, source, "int16", "int16", "int16", "int32", 2, lanes)


def _name(dtype: str, lanes: int) -> str:
    return f"tvm_stitch_dot_{dtype}x{lanes}"


def _function(dtype: str, lanes: int, sums: str, factors: str, needs: str, called: str) -> str:
    """A function that calls another with the sums, the left side's group for each of them, and the right side's."""
    words = f"<{lanes} x i32>"
    return f"""\
{needs.rstrip()}
define {sums} @{_name(dtype, lanes)}({sums} %sums, i32 %left, {words} %right) {{
  %first = insertelement {words} poison, i32 %left, i64 0
  %each = shufflevector {words} %first, {words} poison, {words} zeroinitializer
  %a = bitcast {words} %each to {factors}
  %b = bitcast {words} %right to {factors}
  %added = call {sums} {called}({sums} %sums, {factors} %a, {factors} %b)
  ret {sums} %added
}}
"""


def bits(value: Expr) -> Expr:
    """What a kernel keeps of a bfloat16 in a buffer of its own: TVM makes float32 of buffers of that type."""
    if compat.kind(value) == "FloatImm":  # the upper half of its float32
        return compat.const(int(np.float32(value.value).view(np.uint32)) >> 16, BITS)
    return tir.reinterpret(BITS, value)


def vector(first: Expr, lanes: int) -> Expr:
    """Return the places of ``lanes`` neighbours, from the first one on."""
    return tir.Ramp(first, B.i64(1), lanes)
