# SPDX-License-Identifier: Apache-2.0
"""Calls of the device functions that multiply on matrix units. Each call carries the functions' CUDA C."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ....compat import Expr, T, tir
from ....plan.rows.matrix_units import MatrixUnits

_ELEMENT = {"float16": "half", "bfloat16": "__nv_bfloat16"}
_PUT, _GET = "tvm_stitch::put_sum", "tvm_stitch::get_sum"

_ADD = """
__device__ __forceinline__ void {name}(float* c, const unsigned* low, const unsigned* high, int low_zero, int high_zero,
                                       const void* x, int x_apart, int tile_apart) {{
  tvm_stitch::add_products<{traits}>(c, low, high, low_zero, high_zero, x, x_apart, tile_apart);
}}
"""


def add_products(units: MatrixUnits, *arguments: Expr) -> Expr:
    """Return a call that adds the products of a lane's next weights of two rows.

    Args:
        units: the plan.
        arguments: the addresses of fragments and of each row's words, its zero points, and the address of factors. Then
            the elements from one octet of
            factors to the next one, and to that of the next fragment.
    """
    packed = units.packed
    traits = (
        _ELEMENT[units.dtype], str(packed.bits), str(packed.signed).lower(), str(packed.zero),
        str(packed.own_zero is not None).lower(), str(units.tiles)
    )  # fmt: skip
    words = ["tvm_stitch_add", units.dtype, *traits[1:]]
    name = "_".join(words).replace("-", "less")
    source = _source() + _ADD.format(name=name, traits=", ".join(traits))
    return T.cuda.func_call(name, *arguments, source_code=source)


def load_early(size: int, to: Expr, at: Expr) -> Expr:
    """Return a call that loads 2, 4, 8 or 16 bytes, before what follows it."""
    return T.cuda.func_call(f"tvm_stitch::load_early<{size}>", to, at, source_code=_source())


def fetch_line(at: Expr) -> Expr:
    """Return a call that fetches a line of memory into the second-level cache."""
    return T.cuda.func_call("tvm_stitch::fetch_line", at, source_code=_source())


def copy_weights(to: Expr, at: Expr, size: Expr | int) -> Expr:
    """Return a call that copies 16 bytes to shared memory in the background, or zeros if ``size`` is 0."""
    return T.cuda.func_call(
        "tvm_stitch::copy_weights", to, at, tir.Cast("int32", size), source_code=_source()
    )


def take_weights(to: Expr, at: Expr) -> Expr:
    """Return a call that loads 16 bytes that the lane has copied to shared memory. TVM places no barriers for it."""
    return T.cuda.func_call("tvm_stitch::take_weights", to, at, source_code=_source())


def put_sum(sums: Expr, at: Expr, value: Expr) -> Expr:
    """Return a call that stores a partial sum in shared memory. TVM places no barriers for it."""
    return T.cuda.func_call(_PUT, sums, at, value, source_code=_source())


def get_sum(sums: Expr, at: Expr) -> Expr:
    """Return a call that loads a partial sum from shared memory."""
    return T.cuda.func_call(_GET, sums, at, source_code=_source(), return_type="float32")


@cache
def _source() -> str:
    return (Path(__file__).parent / "products.cuh").read_text()
