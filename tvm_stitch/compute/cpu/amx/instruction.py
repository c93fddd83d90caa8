# SPDX-License-Identifier: Apache-2.0
"""AMX: x86 instructions that multiply tiles of two matrices and add the products to a tile of wider sums.

A CPU with AMX has eight tile registers of 16 rows of 64 bytes. ``tdpbf16ps`` adds products of bfloat16 to float32, and
``tdpbssd`` and its relatives add products of bytes to int32. Denormal factors and sums of bfloat16 count as zero.

The micro-kernel is LLVM IR. It keeps up to 2 x 2 tiles of sums, and stores them to memory at the end. The right side
has the layout of ``packing.py``: a step of a panel is a row of a tile. LLVM's intrinsics for named tile registers take
integers and pointers only. The extents of the registers are a state of the thread, which each task sets and releases.

Linux gives the registers to a process that asks for them. A kernel asks before its first task, and raises an error if
Linux refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .... import compat
from ....codegen import builder as B
from ....compat import Buffer, Expr, T, tir
from ....graph.dtype import BYTES
from ....target import VECTORS_OF_BFLOAT16, has_feature, llvm_version
from ..dot_instruction import BITS

if TYPE_CHECKING:
    from tvm.target import Target

TILE_ROWS = 16
"""Rows of a tile register."""
ROW_BYTES = 64
"""Bytes of a row of a tile register."""
COLUMNS = 2 * ROW_BYTES // 4
"""Columns of the micro-kernel: two tiles of sums of four bytes."""
MOST_ROWS = 2 * TILE_ROWS
"""Rows of the micro-kernel."""

_NAME = "tvm_stitch_amx"
_REFUSED = (
    "Linux does not give this process the tile registers of AMX: the CPU, the kernel or a container lacks them; "
    "compile without them, such as --target 'llvm -mcpu=sapphirerapids -mattr=-amx-tile,-amx-bf16,-amx-int8'"
)


@dataclass(frozen=True)
class TileInstruction:
    """Adds the products of two tiles to a tile of sums.

    Attributes:
        name: LLVM's name of the instruction, such as ``"tdpbf16ps"``.
        left: type in which the left side's elements are multiplied.
        right: type of a packed weight.
        reads: type of a left side that is multiplied without a copy.
        sums: type of the sums.
        group: elements of the reduction dimension that lie together in a packed weight.
    """

    name: str
    left: str
    right: str
    reads: str
    sums: str
    group: int

    @property
    def depth(self) -> int:
        """Elements of the reduction dimension per instruction."""
        return TILE_ROWS * self.group

    def steps(self, reduction: int) -> int:
        """Return the instructions for a reduction. The last one is padded with zeros."""
        return -(-reduction // self.depth)

    @property
    def source(self) -> str:
        """The micro-kernel's functions in LLVM IR."""
        kernels = [_kernel(self.name, rows, columns) for rows in (1, 2) for columns in (1, 2)]
        return "".join([_DECLARED, f"declare void @llvm.x86.{self.name}(i8, i8, i8)\n", *kernels])

    @contextmanager
    def declared(self) -> Iterator[None]:
        """Declare the functions for the code emitted meanwhile. TVM inlines their calls."""
        with T.attr(compat.const(0, "int32"), "pragma_import_llvm", compat.string(self.source)):
            yield

    def require(self) -> None:
        """Emit the request for the registers, in front of a kernel's tasks. The kernel fails if Linux refuses."""
        allowed = tir.call_extern("int32", f"{_NAME}_allowed")
        with T.Assert(tir.EQ(allowed, compat.const(1, "int32")), _REFUSED):
            T.evaluate(compat.const(0, "int32"))

    def configure(self, first: Expr, second: Expr) -> None:
        """Emit the configuration of the thread's registers, for blocks of 1 to 16 rows."""
        # TVM narrows integers of 64 bits in calls where their values allow it, and the function takes one type.
        rows = (tir.Cast("int32", first), tir.Cast("int32", second))
        T.evaluate(tir.call_extern("int32", f"{_NAME}_configure", *rows))

    def release(self) -> None:
        """Emit the release of the thread's registers, at the end of a task."""
        T.evaluate(tir.call_extern("int32", f"{_NAME}_release"))

    def multiply(
        self,
        sums: Buffer,
        blocks: tuple[int, int],
        rows: int,
        left: tuple[Buffer, Expr, int],
        right: tuple[Buffer, Expr],
        steps: int,
    ) -> None:
        """Emit the micro-kernel.

        Args:
            sums: gets rows of ``COLUMNS`` sums.
            blocks: numbers of tiles along the rows and the columns, each 1 or 2.
            rows: rows of the first tile, as configured.
            left: buffer, the first element's index, and elements from row to row.
            right: flat buffer of panels, and the index of a panel's first element.
            steps: instructions along the reduction.
        """
        source, first, stride = left
        panels, start = right
        width = 4 // self.group  # bytes of an element
        arguments = [
            *(sums.data, B.i64(rows)),
            *(_address(source, first), B.i64(stride * width)),
            *(_address(panels, start), B.i64(steps)),
        ]
        name = f"{_NAME}_{self.name}_{blocks[0]}x{blocks[1]}"
        T.evaluate(tir.call_extern("int32", name, *arguments))


def tile_instruction(target: Target, dtypes: tuple[str, str]) -> TileInstruction | None:
    """Return a target's instruction for factors of these types, or None if it has none."""
    if llvm_version() < VECTORS_OF_BFLOAT16 or not has_feature(target, "amx-tile"):
        return None
    triple = str(dict(target.attrs).get("mtriple") or "linux")
    if "linux" not in triple or not has_feature(target, "avx512f"):
        return None
    if dtypes == ("bfloat16", "bfloat16"):
        if not compat.COMPUTES_BFLOAT16 or not has_feature(target, "amx-bf16"):
            return None
        return TileInstruction("tdpbf16ps", BITS, "bfloat16", "bfloat16", "float32", 2)
    if not set(dtypes) <= set(BYTES) or not has_feature(target, "amx-int8"):
        return None
    left, right = dtypes
    signs = "".join("s" if dtype == "int8" else "u" for dtype in dtypes)
    return TileInstruction(f"tdpb{signs}d", left, right, left, "int32", 4)


def _address(buffer: Buffer, index: Expr) -> Expr:
    return T.address_of(compat.load(buffer, [index]))


def _kernel(instruction: str, rows: int, columns: int) -> str:
    """Return the micro-kernel for numbers of tiles, in LLVM IR.

    Registers 0 to 3 hold sums, 4 and 5 tiles of the left side, 6 and 7 those of the right side.
    """
    load = "  call void @llvm.x86.tileloadd64(i8 {}, ptr %{}, i64 {})\n"
    multiply = f"  call void @llvm.x86.{instruction}(i8 {{}}, i8 {{}}, i8 {{}})\n"
    pairs = [(i, j) for i in range(rows) for j in range(columns)]
    clear = "".join(f"  call void @llvm.x86.tilezero(i8 {2 * i + j})\n" for i, j in pairs)
    loads = "".join(load.format(4 + i, f"a{i}", "%stride") for i in range(rows))
    loads += "".join(load.format(6 + j, f"b{j}", 4 * COLUMNS) for j in range(columns))
    products = "".join(multiply.format(2 * i + j, 4 + i, 6 + j) for i, j in pairs)
    stores = "".join(
        f"  call void @llvm.x86.tilestored64(i8 {2 * i + j}, ptr %c{i}{j}, i64 {4 * COLUMNS})\n"
        for i, j in pairs
    )
    return f"""\
define i32 @{_NAME}_{instruction}_{rows}x{columns}(ptr %to, i64 %rows, ptr %a, i64 %stride, ptr %b, i64 %steps)
    alwaysinline {{
entry:
  %below = mul i64 %rows, %stride
{clear}  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %next, %step ]
  %more = icmp slt i64 %k, %steps
  br i1 %more, label %step, label %done
step:
  %ak = mul i64 %k, {ROW_BYTES}
  %a0 = getelementptr i8, ptr %a, i64 %ak
  %a1 = getelementptr i8, ptr %a0, i64 %below
  %bk = mul i64 %k, {TILE_ROWS * 4 * COLUMNS}
  %b0 = getelementptr i8, ptr %b, i64 %bk
  %b1 = getelementptr i8, ptr %b0, i64 {ROW_BYTES}
{loads}{products}  %next = add i64 %k, 1
  br label %head
done:
  %down = mul i64 %rows, {4 * COLUMNS}
  %c00 = getelementptr i8, ptr %to, i64 0
  %c01 = getelementptr i8, ptr %to, i64 {ROW_BYTES}
  %c10 = getelementptr i8, ptr %to, i64 %down
  %c11 = getelementptr i8, ptr %c10, i64 {ROW_BYTES}
{stores}  ret i32 0
}}
"""


# Byte 0 of the configuration is the palette. Bytes 16 to 31 have each register's bytes of a row, in two bytes each.
# Bytes 48 to 55 have its rows. An array of bytes is a local variable, which LLVM writes as a few vectors.
_WIDTHS = "".join(
    f"  %w{r} = getelementptr i8, ptr %c, i64 {16 + 2 * r}\n  store i16 {ROW_BYTES}, ptr %w{r}\n"
    for r in range(8)
)
_HEIGHTS = "".join(
    f"  %h{r} = getelementptr i8, ptr %c, i64 {48 + r}\n  store i8 {rows}, ptr %h{r}\n"
    for r, rows in enumerate(
        ("%first", "%first", "%second", "%second", "%first", "%second", TILE_ROWS, TILE_ROWS)
    )
)
# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), see Documentation/arch/x86/xstate.rst of Linux. The permission is
# one of the process, which threads started later and earlier share.
_DECLARED = f"""\
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare i64 @syscall(i64, ...)
define i32 @{_NAME}_allowed() alwaysinline {{
  %refused = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %granted = icmp eq i64 %refused, 0
  %allowed = zext i1 %granted to i32
  ret i32 %allowed
}}
define i32 @{_NAME}_configure(i32 %rows0, i32 %rows1) alwaysinline {{
  %c = alloca [64 x i8], align 64
  store [64 x i8] zeroinitializer, ptr %c, align 64
  store i8 1, ptr %c
  %first = trunc i32 %rows0 to i8
  %second = trunc i32 %rows1 to i8
{_WIDTHS}{_HEIGHTS}  call void @llvm.x86.ldtilecfg(ptr %c)
  ret i32 0
}}
define i32 @{_NAME}_release() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""
