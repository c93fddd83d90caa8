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
from ...target import VECTORS_OF_BFLOAT16, has_feature, llvm_version, multiplies_bfloat16

if TYPE_CHECKING:
    from tvm.target import Target

BITS = "uint16"
"""The type that holds a bfloat16's bits."""

_LLVM = {"float32": "float", "int32": "i32"}
"""LLVM's names of the types of sums."""


@dataclass(frozen=True)
class DotInstruction:
    """Adds the products of ``group`` elements of the reduction dimension to each of ``lanes`` sums.

    Attributes:
        needs: declarations in LLVM IR, and functions, that the kernel needs.
        called: LLVM's name of the function of sums and both sides' factors.
        factors: type of these factors in LLVM IR.
        left: type in which the left side's elements are multiplied.
        right: type of a packed weight.
        reads: type of a left side that is multiplied without a copy.
        sums: type of the sums.
        group: elements of the reduction dimension per sum.
        lanes: elements of a vector of sums.
        along: whether vectors run along the reduction. Then each sum has its own group of the left side.
            Otherwise all sums share one group.
    """

    needs: str
    called: str
    factors: str
    left: str
    right: str
    reads: str
    sums: str
    group: int
    lanes: int
    along: bool = False

    @property
    def name(self) -> str:
        """Name of the function that wraps the instruction in the kernel."""
        return f"tvm_stitch_dot_{self.right}x{self.lanes}{'_along' if self.along else ''}"

    @property
    def source(self) -> str:
        """That function in LLVM IR, with what it needs.

        It takes a vector of sums, the left side, and the right side's groups as a vector of int32. The left side is a
        group as an int32, or a vector of groups as the right side's.
        """
        words, sums = f"<{self.lanes} x i32>", f"<{self.lanes} x {_LLVM[self.sums]}>"
        repeated = f"""
  %first = insertelement {words} poison, i32 %left, i64 0
  %each = shufflevector {words} %first, {words} poison, {words} zeroinitializer"""
        return f"""\
{self.needs.rstrip()}
define {sums} @{self.name}({sums} %sums, {words if self.along else "i32"} %left, {words} %right) {{\
{"" if self.along else repeated}
  %a = bitcast {words} {"%left" if self.along else "%each"} to {self.factors}
  %b = bitcast {words} %right to {self.factors}
  %added = call {sums} {self.called}({sums} %sums, {self.factors} %a, {self.factors} %b)
  ret {sums} %added
}}
"""

    def steps(self, reduction: int) -> int:
        """Return the number of groups of a reduction dimension. The last group is padded with zeros."""
        return -(-reduction // self.group)

    def add(self, sums: Expr, left: Expr, right: Expr) -> Expr:
        """Return a vector of sums with the products added.

        Args:
            sums: ``lanes`` elements.
            left: the left side's group, which all sums share, ``group`` elements. Or as many groups as ``right`` has,
                if vectors run along the reduction.
            right: the right side's groups, one for each sum, ``lanes * group`` elements.
        """
        vector_of_words = f"int32x{self.lanes}"
        words = [
            tir.reinterpret(vector_of_words if self.along else "int32", left),
            tir.reinterpret(vector_of_words, right),
        ]
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
    if lanes not in (4, 8, 16) or llvm_version() < VECTORS_OF_BFLOAT16:
        return None
    if dtypes == ("bfloat16", "bfloat16"):
        return _bfloat16(lanes) if multiplies_bfloat16(target) else None
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
    called = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    needs = _declared(f"<{lanes} x float>", called, factors)
    return DotInstruction(needs, called, factors, BITS, "bfloat16", "bfloat16", "float32", 2, lanes)


def _bytes(lanes: int) -> DotInstruction:
    sums = f"<{lanes} x i32>"
    called = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    factors = f"<{4 * lanes} x i8>" if llvm_version() >= 22 else sums
    needs = _declared(sums, called, factors)
    return DotInstruction(needs, called, factors, "uint8", "int8", "uint8", "int32", 4, lanes)


def _pairs(lanes: int) -> DotInstruction:
    sums, factors = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    multiplied = {
        4: "@llvm.x86.sse2.pmadd.wd",
        8: "@llvm.x86.avx2.pmadd.wd",
        16: "@llvm.x86.avx512.pmaddw.d.512",
    }[lanes]
    called = f"@tvm_stitch_added_pairs_x{lanes}"
    needs = f"""\
declare {sums} {multiplied}({factors}, {factors})
define {sums} {called}({sums} %sums, {factors} %a, {factors} %b) alwaysinline {{
  %products = call {sums} {multiplied}({factors} %a, {factors} %b)
  %added = add {sums} %sums, %products
  ret {sums} %added
}}
"""
    return DotInstruction(needs, called, factors, "int16", "int16", "int16", "int32", 2, lanes)


def _declared(sums: str, called: str, factors: str) -> str:
    return f"declare {sums} {called}({sums}, {factors}, {factors})"


def bits(value: Expr) -> Expr:
    """Return a bfloat16 as its bits, for the kernel's buffers. TVM turns buffers of bfloat16 into float32."""
    if compat.kind(value) == "FloatImm":  # the upper half of its float32
        return compat.const(int(np.float32(value.value).view(np.uint32)) >> 16, BITS)
    return tir.reinterpret(BITS, value)


def vector(first: Expr, lanes: int) -> Expr:
    """Return the indices of ``lanes`` neighbours, from ``first`` on."""
    return tir.Ramp(first, B.i64(1), lanes)
