# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of the last axis, in Relax.

A short transform is one matmul with a constant matrix. A longer one of ``n = a * b`` numbers is written as a table of
``a`` rows (Cooley and Tukey). A matmul transforms its columns. They are multiplied by roots of one, the twiddles. Then
its rows are transformed in the same way. So a number costs the sum of the factors, not the length. Half of the table is
left out for real numbers, whose spectrum is symmetric. Large prime lengths become a cyclic convolution (Bluestein). All
constants are computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...compat import int_value
from . import matrices
from .factors import factors_of, power_for

Emit = Callable[[Any], Any]
"""Binds an expression to a variable, which it returns."""
Parts = tuple[Any, Any]
"""Real and imaginary parts, of one shape."""


def spectrum(emit: Emit, real: Any, imaginary: Any, sign: int, scale: float = 1.0) -> Parts:
    """Return ``scale * sum_j x[j] * exp(sign * 2 pi i * j * k / n)`` for all k of the last axis.

    Args:
        emit: binds an expression.
        real: real parts ``[..., n]`` in float32 or float64. The extent n is known.
        imaginary: imaginary parts of the same shape, or None if the numbers are real.
        sign: -1 for the transform, 1 for its inverse.
        scale: a factor of the result.
    """
    if imaginary is None:
        return _mirrored(emit, half_spectrum(emit, real, sign, scale), _length(real))
    lead, (real, imaginary) = _flat(emit, [real, imaginary])
    return _shaped(emit, lead, _complex(emit, (real, imaginary), sign, scale))


def half_spectrum(emit: Emit, real: Any, sign: int = -1, scale: float = 1.0) -> Parts:
    """Return the first ``n // 2 + 1`` numbers of the spectrum of real numbers.

    Args:
        emit: binds an expression.
        real: a tensor ``[..., n]`` of floats. The extent n is known.
        sign: -1 for the transform, 1 for its inverse.
        scale: a factor of the result.
    """
    lead, (real,) = _flat(emit, [real])
    return _shaped(emit, lead, _half(emit, real, sign, scale))


def real_signal(emit: Emit, parts: Parts, length: int, sign: int = 1, scale: float = 1.0) -> Any:
    """Return the real numbers ``[..., length]`` whose spectrum begins with the given one.

    Imaginary parts that must be zero in such a spectrum are ignored.

    Args:
        emit: binds an expression.
        parts: the spectrum ``[..., length // 2 + 1]``.
        length: number of elements of the result, which may be odd.
        sign: 1 for the inverse of :func:`half_spectrum` up to a factor of the length.
        scale: a factor of the result.
    """
    lead, flat = _flat(emit, list(parts))
    return _shaped(emit, lead, (_real(emit, (flat[0], flat[1]), length, sign, scale),))[0]


def _length(x: Any) -> int:
    length = int_value(x.ty.shape[-1])
    assert length is not None, "the transformed axis has a symbolic length"
    return length


def _constant(numbers: np.ndarray, like: Any) -> Any:
    dtype = str(like.ty.dtype.dtype)
    return relax.const(np.ascontiguousarray(numbers).astype(dtype), dtype)


def _flat(emit: Emit, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the leading extents, and tensors of two axes."""
    shape = list(tensors[0].ty.shape)
    if len(shape) == 2:
        return shape[:1], list(tensors)
    rows: Any = 1
    for extent in shape[:-1]:
        rows = extent * rows
    return shape[:-1], [emit(R.reshape(x, [rows, shape[-1]])) for x in tensors]


def _shaped(emit: Emit, lead: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Return tensors of two axes with their leading extents."""
    if len(lead) == 1:
        return tuple(parts)
    return tuple(emit(R.reshape(x, [*lead, x.ty.shape[-1]])) for x in parts)


def _sliced(emit: Emit, x: Any, axis: int, begin: int, end: int) -> Any:
    return emit(R.strided_slice(x, [axis], [begin], [end]))


def _table(emit: Emit, x: Any, rows: int, columns: int) -> Any:
    """Return ``[M, rows * columns]`` as ``[M, columns, rows]``."""
    return emit(R.permute_dims(emit(R.reshape(x, [x.ty.shape[0], rows, columns])), [0, 2, 1]))


def _line(emit: Emit, x: Any, batch: Any, rows: int, columns: int) -> Any:
    """Return ``[batch * rows, columns]`` as ``[batch, columns * rows]``, column by column."""
    table = emit(R.permute_dims(emit(R.reshape(x, [batch, rows, columns])), [0, 2, 1]))
    return emit(R.reshape(table, [batch, rows * columns]))


def _parts_of(emit: Emit, x: Any, count: int) -> Parts:
    """Return real and imaginary parts of rows ``[..., 2 * count]``."""
    axis = len(x.ty.shape) - 1
    return _sliced(emit, x, axis, 0, count), _sliced(emit, x, axis, count, 2 * count)


def _product(emit: Emit, parts: Sequence[Any], matrix: np.ndarray) -> Any:
    """Return the matmul of rows ``[..., n]``, real parts in front of imaginary ones, with a constant matrix.

    The product has two axes, since its operands do.
    """
    x = parts[0] if len(parts) == 1 else emit(R.concat(list(parts), -1))
    lead, (x,) = _flat(emit, [x])
    return _shaped(emit, lead, [emit(R.matmul(x, _constant(matrix, x)))])[0]


def _multiplied(emit: Emit, parts: Parts, factors: tuple[np.ndarray, np.ndarray]) -> Parts:
    """Return complex numbers times constant ones."""
    real, imaginary = parts
    cos, sin = (_constant(each, real) for each in factors)
    first = emit(R.subtract(emit(R.multiply(real, cos)), emit(R.multiply(imaginary, sin))))
    return first, emit(R.add(emit(R.multiply(real, sin)), emit(R.multiply(imaginary, cos))))


def _rows(emit: Emit, parts: Parts, length: int, columns: int, factor: int, sign: int) -> Parts:
    """Return transformed columns ``[M, columns, count]`` times their twiddles, as rows ``[M * count, columns]``."""
    count = int_value(parts[0].ty.shape[-1])
    assert count is not None and count <= factor
    twiddles = matrices.roots(np.outer(np.arange(columns), np.arange(count)), length, sign)
    rows = parts[0].ty.shape[0] * count
    first, second = (emit(R.permute_dims(x, [0, 2, 1])) for x in _multiplied(emit, parts, twiddles))
    return emit(R.reshape(first, [rows, columns])), emit(R.reshape(second, [rows, columns]))


def _complex(emit: Emit, parts: Parts, sign: int, scale: float) -> Parts:
    length = _length(parts[0])
    factors = factors_of(length)
    if length > 1 and not factors:
        return _by_convolution(emit, parts, sign, scale)
    factor = factors[0] if factors else 1
    if factor == length:
        return _parts_of(emit, _product(emit, parts, matrices.of_complex(length, sign, scale)), length)
    batch, columns = parts[0].ty.shape[0], length // factor
    table = [_table(emit, x, factor, columns) for x in parts]
    inner = _parts_of(emit, _product(emit, table, matrices.of_complex(factor, sign, scale)), factor)
    found = _complex(emit, _rows(emit, inner, length, columns, factor, sign), sign, 1.0)
    return _line(emit, found[0], batch, factor, columns), _line(emit, found[1], batch, factor, columns)


def _half(emit: Emit, real: Any, sign: int, scale: float) -> Parts:
    length = _length(real)
    factors, half = factors_of(length), length // 2 + 1
    if length > 1 and not factors:
        zeros = emit(R.zeros_like(real))
        found = _by_convolution(emit, (real, zeros), sign, scale)
        found = _sliced(emit, found[0], 1, 0, half), _sliced(emit, found[1], 1, 0, half)
        return _with_real_ends(emit, found, length)
    factor = factors[0] if factors else 1
    if factor == length:
        return _parts_of(emit, _product(emit, [real], matrices.of_real(length, sign, scale)), half)
    batch, columns, count = real.ty.shape[0], length // factor, factor // 2 + 1
    table = _table(emit, real, factor, columns)
    inner = _parts_of(emit, _product(emit, [table], matrices.of_real(factor, sign, scale)), count)
    found = _complex(emit, _rows(emit, inner, length, columns, factor, sign), sign, 1.0)
    lines = (length // 2) // factor + 1  # of the spectrum, as lines of ``factor`` numbers, that are needed
    results = []
    for x, conjugate in zip(found, (False, True)):
        known = emit(R.reshape(x, [batch, count, columns]))
        parts = [_sliced(emit, known, 2, 0, lines)]
        if factor - count:  # number k is the conjugate of number n - k
            others = _sliced(emit, known, 1, 1, factor - count + 1)
            others = _sliced(emit, others, 2, columns - lines, columns)
            others = emit(R.flip(emit(R.flip(others, 1)), 2))
            parts.append(emit(R.negative(others)) if conjugate else others)
        table = emit(R.concat(parts, 1)) if len(parts) > 1 else parts[0]
        line = emit(R.reshape(emit(R.permute_dims(table, [0, 2, 1])), [batch, lines * factor]))
        results.append(_sliced(emit, line, 1, 0, half))
    return _with_real_ends(emit, (results[0], results[1]), length)


def _mirrored(emit: Emit, parts: Parts, length: int) -> Parts:
    """Return the whole spectrum of real numbers from its first half."""
    axis, count = len(parts[0].ty.shape) - 1, (length - 1) // 2
    if count == 0:
        return parts
    results = []
    for x, conjugate in zip(parts, (False, True)):
        others = emit(R.flip(_sliced(emit, x, axis, 1, count + 1), axis))
        results.append(emit(R.concat([x, emit(R.negative(others)) if conjugate else others], axis)))
    return results[0], results[1]


def _real(emit: Emit, parts: Parts, length: int, sign: int, scale: float) -> Any:
    factors = factors_of(length)
    factor = factors[0] if factors else 1
    if factor == length:
        return _product(emit, parts, matrices.to_real(length, sign, scale))
    whole = _mirrored(emit, parts, length)
    if not factors:
        return _by_convolution(emit, _with_real_ends(emit, whole, length), sign, scale)[0]
    # Numbers k and n - k are conjugates, and so are columns k and ``columns - k`` of the table.
    columns = length // factor
    half = columns // 2 + 1
    table = [_sliced(emit, _table(emit, x, factor, columns), 1, 0, half) for x in whole]
    inner = _parts_of(emit, _product(emit, table, matrices.of_complex(factor, sign, scale)), factor)
    found = _real(emit, _rows(emit, inner, length, half, factor, sign), columns, sign, 1.0)
    return _line(emit, found, parts[0].ty.shape[0], factor, columns)


def _with_real_ends(emit: Emit, parts: Parts, length: int) -> Parts:
    """Return a spectrum, or its beginning, whose first number, and whose middle one of an even length, are real."""
    at = np.arange(_length(parts[0]))
    alone = relax.const((at == 0) | (2 * at == length), "bool")
    return parts[0], emit(R.where(alone, _constant(np.zeros(()), parts[1]), parts[1]))


def _by_convolution(emit: Emit, parts: Parts, sign: int, scale: float) -> Parts:
    """Return a transform of any length: ``j * k`` is half of ``j * j + k * k - (k - j) * (k - j)``."""
    length = _length(parts[0])
    size = power_for(length)
    cos, sin = matrices.chirp(length, sign)
    kernel = np.zeros(size, "complex128")
    kernel[:length] = cos - 1j * sin
    kernel[size - length + 1 :] = kernel[1:length][::-1]
    kernel = np.fft.fft(kernel) * (scale / size)
    given = [emit(R.nn.pad(x, [0, 0, 0, size - length])) for x in _multiplied(emit, parts, (cos, sin))]
    found = _multiplied(emit, _complex(emit, (given[0], given[1]), -1, 1.0), (kernel.real, kernel.imag))
    found = _complex(emit, found, 1, 1.0)
    cut = (_sliced(emit, found[0], 1, 0, length), _sliced(emit, found[1], 1, 0, length))
    return _multiplied(emit, cut, (cos, sin))
