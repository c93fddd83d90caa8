# SPDX-License-Identifier: Apache-2.0
"""Float constants that survive being written as CUDA C.

A TVM with Relay writes float constants with seven significant digits. That is less than float32 has (a third is off by
one in its last place), let alone float64. In kernels for GPUs, constants that seven digits do not tell are written in
their bits.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from .. import compat
from ..compat import Expr, tir


def exact_constants(func: Any) -> Any:
    """The scheduled PrimFunc with its float32 and float64 constants as CUDA C will have them, to the last bit."""
    if compat.HAS_RELAX_TIRX:  # it writes all digits itself
        return func
    body = tir.stmt_functor.ir_transform(func.body, None, _in_bits, ["FloatImm"])
    return func.with_body(body)


def is_exact_in_seven_digits(value: float, dtype: str) -> bool:
    """Whether a constant of float32 or float64 is the one that is nearest to its first seven digits."""
    if not math.isfinite(value):
        return True
    written = float(f"{value:.6e}")
    return _bits(written, dtype) == _bits(value, dtype)


def _in_bits(constant: Any) -> Expr | None:
    value, dtype = float(constant.value), str(constant.dtype)
    if dtype not in ("float32", "float64") or is_exact_in_seven_digits(value, dtype):
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
    except OverflowError:  # seven digits of the greatest float32 are more than it
        return -1
    return int(struct.unpack(codes[0], packed)[0])
