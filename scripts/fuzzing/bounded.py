# SPDX-License-Identifier: Apache-2.0
"""Arrays with a bound on how far a correct computation may be from each element.

Floating point is evaluated in float64 whatever the dtype, and ``error`` holds an absolute bound for each element. NaN
and infinities with error 0 are certain. Integers and booleans are exact, in arrays of their own dtype. An infinite
error means that the element is unknown: it depends on a rounding, or is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FloatKind:
    """``eps`` is the distance from 1 to the next number, ``tiny`` the smallest normal one, ``sub`` the smallest."""

    eps: float
    largest: float
    tiny: float
    sub: float


FLOATS = {
    "float16": FloatKind(2.0**-10, 65504.0, 2.0**-14, 2.0**-24),
    "bfloat16": FloatKind(2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133),
    "float32": FloatKind(2.0**-23, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149),
    "float64": FloatKind(2.0**-52, float(np.finfo("float64").max), 2.0**-1022, 2.0**-1074),
}
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Rules:
    """Freedoms of the implementation under test.

    - ulps: of a transcendental function.
    - flush: denormals may become zero.
    - nan_max: a maximum or minimum has to "propagate" NaN, or may do as it likes ("any").
    - lenient: comparisons with NaN are not judged. Nor are differences and quotients of infinities and NaN with
      themselves.
    - fast: functions are those of CUDA's fast mathematics.
    """

    ulps: float = 10.0
    flush: bool = False
    nan_max: str = "any"
    lenient: bool = False
    fast: bool = False


@dataclass(frozen=True, eq=False)
class Bounded:
    """``data`` is float64 for floats, and so is ``error``. ``signed_zero`` says that the sign of zeros is certain."""

    data: Array
    error: Array
    dtype: str
    signed_zero: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def unknown(self) -> Array:
        """Return the mask of unknown elements."""
        return np.isinf(self.error)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def moved(self, function: Callable[[Array], Array]) -> Bounded:
        """Move data: apply one function to the elements and to their errors."""
        return Bounded(function(self.data), function(self.error), self.dtype, self.signed_zero)


def exact(data: Array, dtype: str) -> Bounded:
    """Make exact elements, given in any float type or in the integer type itself."""
    data = np.asarray(data)
    data = data.astype("float64") if dtype in FLOATS else data.astype(dtype)
    return Bounded(data, np.zeros(data.shape), dtype, True)


def flushed(value: Bounded, rules: Rules) -> Bounded:
    """Make elements whose denormals may be taken for zeros."""
    if not rules.flush or not value.is_float:
        return value
    size = np.abs(value.data)
    denormal = (size > 0) & (size < FLOATS[value.dtype].tiny)
    return Bounded(value.data, np.where(denormal, size, value.error), value.dtype, value.signed_zero)


def unknown_like(data: Array, mask: Array) -> Array:
    """Return errors: infinite where the mask holds, else 0."""
    return np.where(mask, np.inf, 0.0) * np.ones(np.shape(data))


def rounded(
    data: Array, error: Array, dtype: str, rules: Rules, ulps: float = 1.0, scale: Array | None = None
) -> Bounded:
    """Make a float result: ``error`` so far, plus ``ulps`` roundings of ``scale`` (the result by default)."""
    kind = FLOATS[dtype]
    scale = np.abs(data) if scale is None else scale
    finite = np.isfinite(data)
    slop = kind.tiny if rules.flush else kind.sub
    with np.errstate(all="ignore"):
        error = np.where(finite, error + ulps * kind.eps * np.where(np.isfinite(scale), scale, np.inf), error)
        near_zero = finite & (np.abs(data) - error < 4 * kind.tiny) & ((data != 0) | (error > 0))
        error = np.where(near_zero, error + slop, error)
        over = finite & (np.abs(data) + error > kind.largest)
        surely = over & (np.abs(data) - error > kind.largest * (1 + kind.eps)) & (dtype == "float32")
    data = np.where(surely, np.copysign(np.inf, data), data)
    error = np.where(over, np.where(surely, 0.0, np.inf), error)
    error = np.where(np.isnan(error), np.inf, error)
    return Bounded(data, error, dtype)


def envelope(center: Array, corners: Sequence[Array], known: Array) -> Array:
    """Return the greatest distance of corners from the center. It is unknown if only some are NaN or infinite."""
    spread = np.zeros(np.shape(center))
    with np.errstate(all="ignore"):
        for corner in corners:
            same = (np.isnan(corner) & np.isnan(center)) | (corner == center)
            distance = np.where(same, 0.0, np.abs(corner - center))
            spread = np.maximum(spread, np.where(np.isnan(distance), np.inf, distance))
    return np.where(known, spread, np.inf)


def overflow(dtype: str, magnitude: Array) -> Array:
    """Return where an integer result of this magnitude is undefined: in TVM wide signed integers never wrap."""
    limits = {"int32": 2.0**31 - 1, "int64": 2.0**62}
    return magnitude > limits.get(dtype, np.inf)
