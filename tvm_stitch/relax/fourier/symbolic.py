# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of a symbolic length: matmuls with matrices that are computed at run time."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax import op as R

from .transform import Parts


def symbolic_spectrum(
    builder: relax.BlockBuilder, real: Any, imaginary: Any, sign: int, scale: float = 1.0
) -> Parts:
    """Return the transform of the last axis, whose length n is symbolic. It costs n multiplications for each number.

    The product of both positions is reduced by the length in integers, so that no angle is large.

    Args:
        builder: the builder of the function.
        real: real parts ``[..., n]`` in float32 or float64.
        imaginary: imaginary parts of the same shape, or None if the numbers are real.
        sign: -1 for the transform, 1 for its inverse.
        scale: a factor of the result.
    """
    emit = builder.emit
    length, dtype = real.ty.shape[-1], str(real.ty.dtype.dtype)
    at = emit(R.arange(0, length, 1, dtype="int64"))
    count = emit(R.shape_to_tensor(relax.ShapeExpr([length])))  # int64, of one element
    exponent = emit(R.multiply(emit(R.expand_dims(at, 1)), emit(R.expand_dims(at, 0))))
    exponent = emit(R.floor_mod(exponent, count))
    turn = emit(R.divide(relax.const(sign * 2 * math.pi, dtype), emit(R.astype(count, dtype))))
    angle = emit(R.multiply(emit(R.astype(exponent, dtype)), turn))
    cos, sin = emit(R.cos(angle)), emit(R.sin(angle))
    if scale != 1.0:
        cos, sin = (emit(R.multiply(x, relax.const(scale, dtype))) for x in (cos, sin))
    first, second = emit(R.matmul(real, cos)), emit(R.matmul(real, sin))
    if imaginary is None:
        return first, second
    first = emit(R.subtract(first, emit(R.matmul(imaginary, sin))))
    return first, emit(R.add(second, emit(R.matmul(imaginary, cos))))
