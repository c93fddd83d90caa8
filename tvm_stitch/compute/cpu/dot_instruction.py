# SPDX-License-Identifier: Apache-2.0
"""x86 instructions that multiply several neighbouring elements and add the products to one wider sum.

- AVX512-BF16 adds two products of bfloat16 to each float32 of a vector (``vdpbf16ps``). Products are exact.
  Additions round to nearest. Denormal factors and sums count as zero.
- AVX512-VNNI and AVX-VNNI add four products of an unsigned and a signed byte to each int32 (``vpdpbusd``).
- SSE2, AVX2 and AVX-512 otherwise multiply two pairs of 16 bits (``pmaddwd``), to which other bytes are widened.
  The instruction for bytes before VNNI (``pmaddubsw``) adds in 16 bits, which is too narrow.

Sums of integers are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ... import compat
from ...codegen import builder as B
from ...compat import Expr, T, tir
from ...graph.dtype import BYTES
from ...target import has_feature, llvm_version

if TYPE_CHECKING:
    from tvm.target import Target

BITS = "uint16"
"""The type that holds a bfloat16's bits."""

LLVM_VERSION = 17
"""First version of LLVM whose intrinsics take vectors of that type, ``bfloat``."""


@dataclass(frozen=True)
class DotInstruction:
    """Adds the products of ``group`` elements of the reduction dimension to each of ``lanes`` sums.

    Attributes:
        name: name of the function that wraps the instruction in the kernel.
        source: that function in LLVM IR, with its declarations. It takes a vector of sums, the left side's group as
            an int32, and the right side's groups as a vector of int32.
        left: type in which the left side's elements are multiplied.
        right: type of a packed weight.
        reads: type of a left side that is multiplied without a copy.
        sums: type of the sums.
        group: elements of the reduction dimension per sum.
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

    def steps(self, reduction: int) -> int:
        """Return the number of groups of a reduction dimension. The last group is padded with zeros."""
        return -(-reduction // self.group)

    def add(self, sums: Expr, left: Expr, right: Expr) -> Expr:
        """Return a vector of sums with the products added.

        Args:
            sums: ``lanes`` elements.
            left: the left side's group, which all sums share, ``group`` elements.
            right: the right side's groups, one for each sum, ``lanes * group`` elements.
        """
        words = [tir.reinterpret("int32", left), tir.reinterpret(f"int32x{self.lanes}", right)]
        return tir.call_pure_extern(f"{self.sums}x{self.lanes}", self.name, sums, *words)

    def position_of(self, column: Expr) -> Expr:
        """Return the indices, within a step of a packed weight, of the groups of a vector of columns from
        ``column`` on.
        """
        return vector(column * B.i64(self.group), self.lanes * self.group)

    @contextmanager
    def declared(self) -> Iterator[None]:
        """Declare the instruction's function for the code emitted meanwhile. TVM inlines its calls."""
        with T.attr(compat.const(0, "int32"), "pragma_import_llvm", compat.string(self.source)):
            yield


def dot_instruction(target: Target, dtypes: tuple[str, str], lanes: int) -> DotInstruction | None:
    """Return a target's instruction for factors of these types and vectors of ``lanes`` sums, or None if it has
    none.
    """
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


def prefers_unsigned(target: Target, lanes: int) -> bool:
    """Return whether, for vectors of ``lanes`` sums, a target multiplies bytes only as unsigned by signed ones."""
    instruction = dot_instruction(target, ("uint8", "int8"), lanes)
    return instruction is not None and instruction.left == "uint8"


def _vnni(lanes: int) -> list[str]:
    """Return LLVM's names of the CPU features that multiply bytes."""
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
    """Return a function in LLVM IR that calls another one.

    It passes the sums, the left side's group (repeated for each sum), and the right side's groups.
    """
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
    """Return a bfloat16 as its bits, for the kernel's buffers. TVM turns buffers of bfloat16 into float32."""
    if compat.kind(value) == "FloatImm":  # the upper half of its float32
        return compat.const(int(np.float32(value.value).view(np.uint32)) >> 16, BITS)
    return tir.reinterpret(BITS, value)


def vector(first: Expr, lanes: int) -> Expr:
    """Return the indices of ``lanes`` neighbours, from ``first`` on."""
    return tir.Ramp(first, B.i64(1), lanes)
