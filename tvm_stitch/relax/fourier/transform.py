# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of the last axis, in Relax.

A short transform is one matmul with a constant matrix. A longer one of ``n = a * b`` numbers is written as a table of
``a`` rows (Cooley and Tukey). A matmul transforms its columns. They are multiplied by roots of one, the twiddles. Then
its rows are transformed in the same way. So a number costs the sum of the factors, not the length. Half of the table is
left out for real numbers, whose spectrum is symmetric. Large prime lengths become a cyclic convolution (Bluestein). All
constants are computed in float64.

A transform of a length with small prime factors only is a function of its own, whose attribute describes it. For CPUs a
pass replaces its calls by one kernel (``kernels.py``). TVM alone compiles the function as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.relax import op as R

from ...compat import int_value
from ...compute.fourier.transform import Transform
from ...cost.choices import Choices
from ..loops.functions import private_function
from . import matrices
from .factors import factors_of, power_for

ATTRIBUTE = "tvm_stitch.fourier_transform"
"""Attribute of the function of a transform: the text of its description."""
Parts = tuple[Any, Any]
"""Real and imaginary parts, of one shape."""


def spectrum(builder: relax.BlockBuilder, real: Any, imaginary: Any, sign: int, scale: float = 1.0) -> Parts:
    """Return ``scale * sum_j x[j] * exp(sign * 2 pi i * j * k / n)`` for all k of the last axis.

    Args:
        builder: the builder of the function.
        real: real parts ``[..., n]`` in float32 or float64. The extent n is known.
        imaginary: imaginary parts of the same shape, or None if the numbers are real.
        sign: -1 for the transform, 1 for its inverse.
        scale: a factor of the result.
    """
    if imaginary is None:
        return _mirrored(builder, half_spectrum(builder, real, sign, scale), _length(real))
    lead, (real, imaginary) = _flat(builder, [real, imaginary])
    transform = Transform("complex", _length(real), sign, scale)
    return _shaped(builder, lead, _transformed(builder, transform, [real, imaginary]))


def half_spectrum(builder: relax.BlockBuilder, real: Any, sign: int = -1, scale: float = 1.0) -> Parts:
    """Return the first ``n // 2 + 1`` numbers of the spectrum of real numbers.

    Args:
        builder: the builder of the function.
        real: a tensor ``[..., n]`` of floats. The extent n is known.
        sign: -1 for the transform, 1 for its inverse.
        scale: a factor of the result.
    """
    lead, (real,) = _flat(builder, [real])
    transform = Transform("half", _length(real), sign, scale)
    return _shaped(builder, lead, _transformed(builder, transform, [real]))


def real_signal(
    builder: relax.BlockBuilder, parts: Parts, length: int, sign: int = 1, scale: float = 1.0
) -> Any:
    """Return the real numbers ``[..., length]`` whose spectrum begins with the given one.

    Imaginary parts that must be zero in such a spectrum are ignored.

    Args:
        builder: the builder of the function.
        parts: the spectrum ``[..., length // 2 + 1]``.
        length: number of elements of the result, which may be odd.
        sign: 1 for the inverse of :func:`half_spectrum` up to a factor of the length.
        scale: a factor of the result.
    """
    lead, flat = _flat(builder, list(parts))
    return _shaped(builder, lead, _transformed(builder, Transform("real", length, sign, scale), flat))[0]


def written_out(builder: relax.BlockBuilder, transform: Transform, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a transform of rows, written as matmuls.

    Args:
        builder: the builder of the function.
        transform: the transform.
        operands: real and imaginary parts ``[rows, n]``, or real numbers.
    """
    sign, scale = transform.sign, transform.scale
    if transform.kind == "half":
        return list(_half(builder, operands[0], sign, scale))
    parts = operands[0], operands[1]
    if transform.kind == "real":
        return [_real(builder, parts, transform.length, sign, scale)]
    return list(_complex(builder, parts, sign, scale))


def _transformed(builder: relax.BlockBuilder, transform: Transform, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a transform, by a call of a function if a kernel may compute it."""
    choices = Choices()
    if transform.length < choices.fourier_kernel_length or not transform.is_smooth:
        return written_out(builder, transform, operands)
    rows = operands[0].ty.shape[0]
    # The extent may be an expression, from which no variable of the function could be told.
    rows = tirx.Var("rows", "int64") if int_value(rows) is None else rows
    types = [relax.TensorType([rows, x.ty.shape[1]], x.ty.dtype) for x in operands]
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    function = private_function(
        builder,
        f"fourier_{transform.kind}",
        params,
        lambda own: written_out(builder, transform, own),
        {ATTRIBUTE: transform.to_text()},
    )
    done = builder.emit(relax.Call(function, list(operands)))
    return [builder.emit(relax.TupleGetItem(done, i)) for i in range(len(done.ty.fields))]


def _length(x: Any) -> int:
    length = int_value(x.ty.shape[-1])
    assert length is not None, "the transformed axis has a symbolic length"
    return length


def _constant(numbers: np.ndarray, like: Any) -> Any:
    dtype = str(like.ty.dtype.dtype)
    return relax.const(np.ascontiguousarray(numbers).astype(dtype), dtype)


def _flat(builder: relax.BlockBuilder, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the leading extents, and tensors of two axes."""
    shape = list(tensors[0].ty.shape)
    if len(shape) == 2:
        return shape[:1], list(tensors)
    rows: Any = 1
    for extent in shape[:-1]:
        rows = extent * rows
    return shape[:-1], [builder.emit(R.reshape(x, [rows, shape[-1]])) for x in tensors]


def _shaped(builder: relax.BlockBuilder, lead: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Return tensors of two axes with their leading extents."""
    if len(lead) == 1:
        return tuple(parts)
    return tuple(builder.emit(R.reshape(x, [*lead, x.ty.shape[-1]])) for x in parts)


def _sliced(builder: relax.BlockBuilder, x: Any, axis: int, begin: int, end: int) -> Any:
    return builder.emit(R.strided_slice(x, [axis], [begin], [end]))


def _table(builder: relax.BlockBuilder, x: Any, rows: int, columns: int) -> Any:
    """Return ``[M, rows * columns]`` as ``[M, columns, rows]``."""
    return builder.emit(R.permute_dims(builder.emit(R.reshape(x, [x.ty.shape[0], rows, columns])), [0, 2, 1]))


def _line(builder: relax.BlockBuilder, x: Any, batch: Any, rows: int, columns: int) -> Any:
    """Return ``[batch * rows, columns]`` as ``[batch, columns * rows]``, column by column."""
    table = builder.emit(R.permute_dims(builder.emit(R.reshape(x, [batch, rows, columns])), [0, 2, 1]))
    return builder.emit(R.reshape(table, [batch, rows * columns]))


def _parts_of(builder: relax.BlockBuilder, x: Any, count: int) -> Parts:
    """Return real and imaginary parts of rows ``[..., 2 * count]``."""
    axis = len(x.ty.shape) - 1
    return _sliced(builder, x, axis, 0, count), _sliced(builder, x, axis, count, 2 * count)


def _product(builder: relax.BlockBuilder, parts: Sequence[Any], matrix: np.ndarray) -> Any:
    """Return the matmul of rows ``[..., n]``, real parts in front of imaginary ones, with a constant matrix.

    The product has two axes, since its operands do.
    """
    x = parts[0] if len(parts) == 1 else builder.emit(R.concat(list(parts), -1))
    lead, (x,) = _flat(builder, [x])
    return _shaped(builder, lead, [builder.emit(R.matmul(x, _constant(matrix, x)))])[0]


def _multiplied(builder: relax.BlockBuilder, parts: Parts, factors: tuple[np.ndarray, np.ndarray]) -> Parts:
    """Return complex numbers times constant ones."""
    real, imaginary = parts
    cos, sin = (_constant(each, real) for each in factors)
    first = builder.emit(
        R.subtract(builder.emit(R.multiply(real, cos)), builder.emit(R.multiply(imaginary, sin)))
    )
    return first, builder.emit(
        R.add(builder.emit(R.multiply(real, sin)), builder.emit(R.multiply(imaginary, cos)))
    )


def _rows(
    builder: relax.BlockBuilder, parts: Parts, length: int, columns: int, factor: int, sign: int
) -> Parts:
    """Return transformed columns ``[M, columns, count]`` times their twiddles, as rows ``[M * count, columns]``."""
    count = int_value(parts[0].ty.shape[-1])
    assert count is not None and count <= factor
    twiddles = matrices.roots(np.outer(np.arange(columns), np.arange(count)), length, sign)
    rows = parts[0].ty.shape[0] * count
    first, second = (
        builder.emit(R.permute_dims(x, [0, 2, 1])) for x in _multiplied(builder, parts, twiddles)
    )
    return builder.emit(R.reshape(first, [rows, columns])), builder.emit(R.reshape(second, [rows, columns]))


def _complex(builder: relax.BlockBuilder, parts: Parts, sign: int, scale: float) -> Parts:
    length = _length(parts[0])
    factors = factors_of(length)
    if length > 1 and not factors:
        return _by_convolution(builder, parts, sign, scale)
    factor = factors[0] if factors else 1
    if factor == length:
        return _parts_of(builder, _product(builder, parts, matrices.of_complex(length, sign, scale)), length)
    batch, columns = parts[0].ty.shape[0], length // factor
    table = [_table(builder, x, factor, columns) for x in parts]
    inner = _parts_of(builder, _product(builder, table, matrices.of_complex(factor, sign, scale)), factor)
    results = _complex(builder, _rows(builder, inner, length, columns, factor, sign), sign, 1.0)
    return _line(builder, results[0], batch, factor, columns), _line(
        builder, results[1], batch, factor, columns
    )


def _half(builder: relax.BlockBuilder, real: Any, sign: int, scale: float) -> Parts:
    length = _length(real)
    factors, half = factors_of(length), length // 2 + 1
    if length > 1 and not factors:
        zeros = builder.emit(R.zeros_like(real))
        both = _by_convolution(builder, (real, zeros), sign, scale)
        both = _sliced(builder, both[0], 1, 0, half), _sliced(builder, both[1], 1, 0, half)
        return with_real_ends(builder, both, length)
    factor = factors[0] if factors else 1
    if factor == length:
        return _parts_of(builder, _product(builder, [real], matrices.of_real(length, sign, scale)), half)
    batch, columns, count = real.ty.shape[0], length // factor, factor // 2 + 1
    table = _table(builder, real, factor, columns)
    inner = _parts_of(builder, _product(builder, [table], matrices.of_real(factor, sign, scale)), count)
    both = _complex(builder, _rows(builder, inner, length, columns, factor, sign), sign, 1.0)
    lines = (length // 2) // factor + 1  # of the spectrum, as lines of ``factor`` numbers, that are needed
    results = []
    for x, conjugate in zip(both, (False, True)):
        known = builder.emit(R.reshape(x, [batch, count, columns]))
        parts = [_sliced(builder, known, 2, 0, lines)]
        if factor - count:  # number k is the conjugate of number n - k
            others = _sliced(builder, known, 1, 1, factor - count + 1)
            others = _sliced(builder, others, 2, columns - lines, columns)
            others = builder.emit(R.flip(builder.emit(R.flip(others, 1)), 2))
            parts.append(builder.emit(R.negative(others)) if conjugate else others)
        table = builder.emit(R.concat(parts, 1)) if len(parts) > 1 else parts[0]
        line = builder.emit(
            R.reshape(builder.emit(R.permute_dims(table, [0, 2, 1])), [batch, lines * factor])
        )
        results.append(_sliced(builder, line, 1, 0, half))
    return with_real_ends(builder, (results[0], results[1]), length)


def _mirrored(builder: relax.BlockBuilder, parts: Parts, length: int) -> Parts:
    """Return the whole spectrum of real numbers from its first half."""
    axis, count = len(parts[0].ty.shape) - 1, (length - 1) // 2
    if count == 0:
        return parts
    results = []
    for x, conjugate in zip(parts, (False, True)):
        others = builder.emit(R.flip(_sliced(builder, x, axis, 1, count + 1), axis))
        results.append(
            builder.emit(R.concat([x, builder.emit(R.negative(others)) if conjugate else others], axis))
        )
    return results[0], results[1]


def _real(builder: relax.BlockBuilder, parts: Parts, length: int, sign: int, scale: float) -> Any:
    factors = factors_of(length)
    factor = factors[0] if factors else 1
    if factor == length:
        return _product(builder, parts, matrices.to_real(length, sign, scale))
    whole = _mirrored(builder, parts, length)
    if not factors:
        return _by_convolution(builder, with_real_ends(builder, whole, length), sign, scale)[0]
    # Numbers k and n - k are conjugates, and so are columns k and ``columns - k`` of the table.
    columns = length // factor
    half = columns // 2 + 1
    table = [_sliced(builder, _table(builder, x, factor, columns), 1, 0, half) for x in whole]
    inner = _parts_of(builder, _product(builder, table, matrices.of_complex(factor, sign, scale)), factor)
    results = _real(builder, _rows(builder, inner, length, half, factor, sign), columns, sign, 1.0)
    return _line(builder, results, parts[0].ty.shape[0], factor, columns)


def with_real_ends(builder: relax.BlockBuilder, parts: Parts, length: int) -> Parts:
    """Return a spectrum, or its beginning, whose first number, and whose middle one of an even length, are real."""
    at = np.arange(_length(parts[0]))
    alone = relax.const((at == 0) | (2 * at == length), "bool")
    return parts[0], builder.emit(R.where(alone, _constant(np.zeros(()), parts[1]), parts[1]))


def _by_convolution(builder: relax.BlockBuilder, parts: Parts, sign: int, scale: float) -> Parts:
    """Return a transform of any length: ``j * k`` is half of ``j * j + k * k - (k - j) * (k - j)``."""
    length = _length(parts[0])
    size = power_for(length)
    cos, sin = matrices.chirp(length, sign)
    kernel = np.zeros(size, "complex128")
    kernel[:length] = cos - 1j * sin
    kernel[size - length + 1 :] = kernel[1:length][::-1]
    kernel = np.fft.fft(kernel) * (scale / size)
    given = [
        builder.emit(R.nn.pad(x, [0, 0, 0, size - length])) for x in _multiplied(builder, parts, (cos, sin))
    ]
    transformed = tuple(_transformed(builder, Transform("complex", size, -1), given))
    transformed = _multiplied(builder, (transformed[0], transformed[1]), (kernel.real, kernel.imag))
    transformed = tuple(_transformed(builder, Transform("complex", size, 1), transformed))
    cut = (_sliced(builder, transformed[0], 1, 0, length), _sliced(builder, transformed[1], 1, 0, length))
    return _multiplied(builder, cut, (cos, sin))
