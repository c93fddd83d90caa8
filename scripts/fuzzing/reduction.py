# SPDX-License-Identifier: Apache-2.0
"""The oracle's reductions, scans and contractions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .bounded import FLOATS, HALVES, Array, Bounded, Rules, overflow, rounded, unknown_like

Axes = Sequence[int] | None


def axes_of(axis: int | Axes, rank: int) -> tuple[int, ...]:
    """Return axes as a tuple of numbers from 0, all of them for None."""
    if axis is None:
        return tuple(range(rank))
    return tuple(a % rank for a in ([axis] if isinstance(axis, int) else axis))


def _count(x: Bounded, axes: tuple[int, ...]) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype="int64"))


def _accumulator(dtype: str) -> float:
    """Sums of half types are kept in float32."""
    return FLOATS["float32" if dtype in HALVES else dtype].eps


def total(x: Bounded, axis: int | Axes, keepdims: bool, rules: Rules) -> Bounded:
    """Sum in any order."""
    axes = axes_of(axis, len(x.shape))
    with np.errstate(all="ignore"):
        if not x.is_float:
            data = np.sum(x.data, axis=axes, keepdims=keepdims, dtype=x.dtype)
            magnitude = np.sum(np.abs(x.data.astype("float64")), axis=axes, keepdims=keepdims)
            unknown = np.any(x.unknown, axis=axes, keepdims=keepdims) | overflow(x.dtype, magnitude)
            return Bounded(np.asarray(data), unknown_like(data, unknown), x.dtype)
        data = np.asarray(np.sum(x.data, axis=axes, keepdims=keepdims))
        magnitude = np.sum(np.abs(x.data), axis=axes, keepdims=keepdims)
        error = np.sum(x.error, axis=axes, keepdims=keepdims)
        error = error + _slack(x.dtype, _count(x, axes), magnitude)
        # Parts of the sum may overflow though the sum does not.
        error = np.where(np.isfinite(data) & (magnitude + error > FLOATS[x.dtype].largest), np.inf, error)
        mixed = np.isinf(data) & (error > 0) & np.any(np.isinf(x.error), axis=axes, keepdims=keepdims)
        error = np.where(
            np.isfinite(data), error, np.where(mixed, np.inf, np.where(np.isinf(error), np.inf, 0))
        )
        error = np.where(_contested(x, axes, keepdims), np.inf, error)
        hidden = np.any(x.unknown, axis=axes, keepdims=keepdims)
        error = np.where(hidden & ~_settled_nan(x, axes, keepdims), np.inf, error)
        return rounded(data, error, x.dtype, rules, 1)


def _contested(x: Bounded, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return where partial sums may overflow to both infinities, which gives NaN in some orders."""

    def part(sign: int) -> tuple[Array, Array]:
        finite = np.where(np.isfinite(x.data) & ~x.unknown, np.maximum(sign * x.data + x.error, 0), 0)
        size = np.sum(finite, axis=axes, keepdims=keepdims) * (1 + 2.0**-10)
        return size > FLOATS[x.dtype].largest, np.any(x.data == sign * np.inf, axis=axes, keepdims=keepdims)

    (up, above), (down, below) = part(1), part(-1)
    nan = np.any(np.isnan(x.data), axis=axes, keepdims=keepdims) | (above & below)
    return np.asarray(((up & (down | below)) | (down & above)) & ~nan)


def _settled_nan(x: Bounded, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Return where one operand, and so the sum, is certainly NaN."""
    return np.any(np.isnan(x.data) & (x.error == 0), axis=axes, keepdims=keepdims)


def _slack(dtype: str, count: int, magnitude: Array) -> Array:
    return np.asarray(count * _accumulator(dtype) * np.where(np.isfinite(magnitude), magnitude, 0))


def mean(x: Bounded, axis: int | Axes, keepdims: bool, rules: Rules) -> Bounded:
    """Divide the sum by the count. The mean of nothing is unknown."""
    count = _count(x, axes_of(axis, len(x.shape)))
    summed = total(x, axis, keepdims, rules)
    if count == 0:
        return Bounded(summed.data, np.full(summed.shape, np.inf), x.dtype)
    return rounded(summed.data / count, summed.error / count, x.dtype, rules, 2)


def variance(x: Bounded, axis: int | Axes, keepdims: bool, rules: Rules) -> Bounded:
    """Mean of squared deviations, whether from the mean or from a shift near it."""
    axes = axes_of(axis, len(x.shape))
    count = _count(x, axes)
    with np.errstate(all="ignore"):
        center = mean(x, axes, True, rules)
        deviation = x.data - center.data
        off = x.error + center.error
        data = np.asarray(np.sum(deviation**2, axis=axes, keepdims=keepdims)) / max(count, 1)
        error = np.sum(2 * np.abs(deviation) * off + off**2, axis=axes, keepdims=keepdims) / max(count, 1)
        widest = np.max(np.abs(deviation), axis=axes, keepdims=keepdims, initial=0) ** 2
        error = error + (count + 64) * _accumulator(x.dtype) * widest
        if x.dtype in HALVES:
            error = error + 4 * FLOATS[x.dtype].eps * data
        special = ~np.isfinite(data) | (widest * max(count, 1) > FLOATS[x.dtype].largest) | (count == 0)
        nan = _settled_nan(x, axes, keepdims)
        error = np.where(nan, 0, np.where(special, np.inf, error))
        return rounded(np.where(nan, np.nan, data), error, x.dtype, rules, 4)


def extreme(name: str, x: Bounded, axis: int | Axes, keepdims: bool, rules: Rules) -> Bounded:
    """Maximum or minimum. Of nothing, or of identities alone, it is unknown."""
    axes = axes_of(axis, len(x.shape))
    function = np.max if name == "max" else np.min
    floating = x.is_float
    if floating:
        identity = -np.inf if name == "max" else np.inf
    else:
        limits = (False, True) if x.dtype == "bool" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
        identity = limits[0] if name == "max" else limits[1]
    data = np.asarray(function(x.data, axis=axes, keepdims=keepdims, initial=identity))
    unknown = np.any(x.unknown, axis=axes, keepdims=keepdims) | (_count(x, axes) == 0)
    error = np.max(np.where(x.unknown, 0, x.error), axis=axes, keepdims=keepdims, initial=0)
    if floating:
        nan = np.any(np.isnan(x.data), axis=axes, keepdims=keepdims)
        unknown = unknown | (data == identity) | (nan & (rules.nan_max == "any"))
        error = np.where(np.isfinite(data), error, 0)
    return Bounded(data, np.where(unknown, np.inf, error), x.dtype)


def product(x: Bounded, axis: int | Axes, keepdims: bool, rules: Rules) -> Bounded:
    """Multiply in any order."""
    axes = axes_of(axis, len(x.shape))
    with np.errstate(all="ignore"):
        magnitudes = np.abs(x.data.astype("float64"))
        if not x.is_float:
            data = np.prod(x.data, axis=axes, keepdims=keepdims, dtype=x.dtype)
            bound = np.prod(np.maximum(magnitudes, 1), axis=axes, keepdims=keepdims)
            unknown = np.any(x.unknown, axis=axes, keepdims=keepdims) | overflow(x.dtype, bound)
            return Bounded(np.asarray(data), unknown_like(data, unknown), x.dtype)
        data = np.asarray(np.prod(x.data, axis=axes, keepdims=keepdims))
        relative = np.sum(x.error / magnitudes, axis=axes, keepdims=keepdims)
        # In no order may a partial product leave the range of the dtype.
        logs = np.log(np.where(magnitudes > 0, magnitudes, 1.0))
        high = np.sum(np.maximum(logs, 0), axis=axes, keepdims=keepdims)
        low = np.sum(np.minimum(logs, 0), axis=axes, keepdims=keepdims)
        kind = FLOATS[x.dtype]
        inside = (high < np.log(kind.largest) - 1) & (low > np.log(kind.tiny) + 1)
        plain = np.all(np.isfinite(x.data) & ~x.unknown, axis=axes, keepdims=keepdims) & inside
        zero = np.any((x.data == 0) & (x.error == 0), axis=axes, keepdims=keepdims)
        relative = np.where(zero, 0, relative)
        sound = plain & (relative < 0.1)
        count = _count(x, axes)
        step = kind.eps if x.dtype in HALVES else 0
        error = np.abs(data) * (1.2 * relative + count * _accumulator(x.dtype) + step)
        return rounded(data, np.where(sound, error, np.inf), x.dtype, rules, 1)


def logical(name: str, x: Bounded, axis: int | Axes, keepdims: bool) -> Bounded:
    """Compute ``all`` or ``any``. One element that decides settles them."""
    axes = axes_of(axis, len(x.shape))
    function = np.all if name == "all" else np.any
    data = np.asarray(function(x.data, axis=axes, keepdims=keepdims))
    deciding = (x.data != (name == "all")) & ~x.unknown
    settled = np.any(deciding, axis=axes, keepdims=keepdims)
    unknown = np.any(x.unknown, axis=axes, keepdims=keepdims) & ~settled
    data = np.where(settled, name == "any", data)
    return Bounded(data, unknown_like(data, unknown), "bool")


def arg_extreme(name: str, x: Bounded, axis: int | None, keepdims: bool) -> Bounded:
    """Return the first index of the greatest or least element.

    The index is unknown if another element is as good within its error.
    """
    data = x.data.astype("float64") * (1 if name == "argmax" else -1)
    if axis is None:
        flat = Bounded(data.reshape(-1), x.error.reshape(-1), x.dtype)
        index = _arg_axis(flat, 0)
        shape = (1,) * len(x.shape) if keepdims else ()
        return index.moved(lambda a: np.reshape(a, shape))
    index = _arg_axis(Bounded(data, x.error, x.dtype), axis)
    return index.moved(lambda a: np.expand_dims(a, axis)) if keepdims else index


def _arg_axis(x: Bounded, axis: int) -> Bounded:
    if x.shape[axis] == 0:
        shape = tuple(e for i, e in enumerate(x.shape) if i != axis % len(x.shape))
        return Bounded(np.zeros(shape, "int64"), np.full(shape, np.inf), "int64")
    special = np.isnan(x.data) | x.unknown | np.isinf(x.data)
    unknown = np.any(special, axis=axis)
    data = np.where(special, 0, x.data)
    error = np.where(special, 0, x.error)
    index = np.argmax(data, axis=axis)
    best = np.expand_dims(index, axis)
    lower = np.take_along_axis(data - error, best, axis)
    rival = (data + error >= lower) & ((error > 0) | (np.take_along_axis(error, best, axis) > 0))
    np.put_along_axis(rival, best, False, axis)
    unknown = unknown | np.any(rival, axis=axis)
    return Bounded(index.astype("int64"), unknown_like(index, unknown), "int64")


def cumulative(x: Bounded, axis: int | None, exclusive: bool, rules: Rules) -> Bounded:
    """Prefix sums."""
    if axis is None:
        x = x.moved(lambda a: a.reshape(-1))
        axis = 0
    if x.shape[axis] == 0:
        raise ValueError("TVM writes the first element of a scan also where there is none")
    with np.errstate(all="ignore"):
        shifted = x if not exclusive else x.moved(lambda a: _shift(a, axis))
        if not x.is_float:
            data = np.cumsum(shifted.data, axis=axis, dtype=x.dtype)
            magnitude = np.cumsum(np.abs(shifted.data.astype("float64")), axis=axis)
            unknown = (np.cumsum(shifted.unknown, axis=axis) > 0) | overflow(x.dtype, magnitude)
            return Bounded(data, unknown_like(data, unknown), x.dtype)
        data = np.cumsum(shifted.data, axis=axis)
        magnitude = np.cumsum(np.abs(shifted.data), axis=axis)
        error = np.cumsum(shifted.error, axis=axis) + x.shape[axis] * FLOATS[x.dtype].eps * magnitude
        error = np.where(np.isfinite(data) & (magnitude + error < FLOATS[x.dtype].largest), error, np.inf)
        return rounded(data, error, x.dtype, rules, 1)


def _shift(a: Array, axis: int) -> Array:
    first = np.zeros_like(np.take(a, [0], axis)) if a.shape[axis] else a
    return np.concatenate([first, np.delete(a, -1, axis)], axis) if a.shape[axis] else a


def contraction(a: Bounded, b: Bounded, multiply: str, length: int, rules: Rules) -> Bounded:
    """Compute an einsum of two operands. Non-finite results are not judged. TVM may sum half types in their own
    precision.

    Attention divides by the sum of the weights at the end (FlashAttention, Dao et al., 2022). Until then the greatest
    weight is 1, at most ``length`` times as large as after a softmax. So sums of weights from 0 to 1 may overflow if
    the result is near the dtype's largest number.
    """
    with np.errstate(all="ignore"):
        if not a.is_float:
            data = np.einsum(multiply, a.data, b.data).astype(a.dtype)
            magnitude = np.einsum(
                multiply, np.abs(a.data.astype("float64")), np.abs(b.data.astype("float64"))
            )
            hidden = np.einsum(multiply, a.unknown * 1.0, np.ones(b.shape)) + np.einsum(
                multiply, np.ones(a.shape), b.unknown * 1.0
            )
            unknown = (hidden > 0) | overflow(a.dtype, magnitude)
            return Bounded(np.asarray(data), unknown_like(data, unknown), a.dtype)
        x, y = (np.where(np.isfinite(v.data), v.data, 0.0) for v in (a, b))
        ex, ey = (np.where(v.unknown | ~np.isfinite(v.data), 0.0, v.error) for v in (a, b))
        lost_x, lost_y = ((v.unknown | ~np.isfinite(v.data)) * 1.0 for v in (a, b))
        data = np.asarray(np.einsum(multiply, x, y))
        magnitude = np.einsum(multiply, np.abs(x), np.abs(y))
        error = (
            np.einsum(multiply, np.abs(x) + ex, np.abs(y) + ey)
            - magnitude
            + (length + 2) * FLOATS[a.dtype].eps * magnitude
        )
        # A product below the smallest normal number loses up to half of the smallest number, whatever its size.
        kind = FLOATS[a.dtype]
        error += np.where(magnitude > 0, length * (kind.tiny if rules.flush else kind.sub / 2), 0.0)
        weights = x.size > 0 and 0 <= x.min() and x.max() <= 1
        largest = FLOATS[a.dtype].largest / (length if weights and length else 1)
        lost = np.einsum(multiply, lost_x, np.ones(y.shape)) + np.einsum(multiply, np.ones(x.shape), lost_y)
        error = np.where((lost > 0) | (magnitude > largest), np.inf, np.maximum(error, 0))
        return rounded(data, error, a.dtype, rules, 1)
