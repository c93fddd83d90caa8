# SPDX-License-Identifier: Apache-2.0
"""Write float constants so that CUDA C keeps every bit of them.

In kernels for GPUs, constants that TVM's digits do not express exactly are written as their bits.

Fault: TVM writes float64 constants with 15 digits behind the point: 1/3 loses its last bits, and 1e-20 becomes 0. A
    TVM with Relay writes all float constants with seven significant digits.
Seen in: TVM 0.27.0, TVM 0.17.dev0
Input: ``x * 1e-20`` of float64, target cuda
Upstream: https://github.com/apache/tvm/issues/17276
"""

from __future__ import annotations

import math
import struct
from typing import Any

from ... import compat
from ...compat import Expr, tir


def exact_constants(func: Any) -> Any:
    """Return the scheduled PrimFunc with float32 and float64 constants written so that CUDA C reads all bits."""
    return compat.with_float_constants(func, _in_bits)


def exact_constant(constant: Any) -> Expr:
    """Return the constant, or its bits if CUDA C would read another number."""
    written = _in_bits(constant)
    return constant if written is None else written


def is_written_exactly(value: float, dtype: str) -> bool:
    """Return True if TVM writes a constant so that C reads the same one."""
    if not compat.WRITES_FLOAT32:
        return is_exact_in_seven_digits(value, dtype)
    if dtype == "float32" or not math.isfinite(value):  # written in hexadecimal digits, or as a name
        return True
    return _bits(float(f"{value:.15f}"), dtype) == _bits(value, dtype)


def is_exact_in_seven_digits(value: float, dtype: str) -> bool:
    """Return True if a float32 or float64 constant is the number that is nearest to its first seven digits."""
    if not math.isfinite(value):
        return True
    written = float(f"{value:.6e}")
    return _bits(written, dtype) == _bits(value, dtype)


def _in_bits(constant: Any) -> Expr | None:
    value, dtype = float(constant.value), compat.dtype_of(constant)
    if dtype not in ("float32", "float64") or is_written_exactly(value, dtype):
        return None
    name, integer = {
        "float32": ("__int_as_float", "int32"),
        "float64": ("__longlong_as_double", "int64"),
    }[dtype]
    return tir.call_pure_extern(dtype, name, compat.const(_bits(value, dtype), integer))


def _bits(value: float, dtype: str) -> int:
    codes = "if" if dtype == "float32" else "qd"
    try:
        packed = struct.pack(codes[1], value)
    except OverflowError:  # in seven digits, the greatest float32 is rounded up and overflows
        return -1
    return int(struct.unpack(codes[0], packed)[0])
