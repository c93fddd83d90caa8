# SPDX-License-Identifier: Apache-2.0
"""Random contents of inputs and constants, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .bounded import FLOATS
from .case import Case, Inapplicable, extent

try:
    import ml_dtypes

    BFLOAT16: Any = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # without it, no case has bfloat16
    BFLOAT16 = None

FILLS = ("normal", "positive", "special", "ties", "wide", "full", "small", "index:N")


def numpy_dtype(name: str) -> Any:
    """Return the NumPy dtype of a name.

    Raises:
        Inapplicable: for bfloat16 without ml_dtypes.
    """
    if name == "bfloat16":
        if BFLOAT16 is None:
            raise Inapplicable("bfloat16 needs ml_dtypes")
        return BFLOAT16
    return np.dtype(name)


def fill(
    shape: Sequence[int], dtype: str, how: str, rng: np.random.Generator, sizes: Mapping[str, int]
) -> np.ndarray:
    """Make an array of the dtype (``ml_dtypes`` for bfloat16).

    - normal: around 0
    - positive: 0.5 to 2
    - special: a sixth of NaN, infinities, zeros, denormals, extremes
    - ties: a few values
    - wide: magnitudes of any order
    - full: all integers of the dtype
    - small: up to 10
    - index:N: indices below N
    """
    shape = tuple(shape)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype not in FLOATS:
        return _integers(shape, dtype, how, rng, sizes)
    kind = FLOATS[dtype]
    values = rng.normal(size=shape) * 2
    if how == "positive":
        values = rng.uniform(0.5, 2, shape)
    elif how == "ties":
        values = rng.integers(-2, 3, shape).astype("float64")
    elif how == "wide":
        reach = min(30.0, np.log10(kind.largest) / 2)
        values = np.sign(values) * 10 ** rng.uniform(-reach, reach, shape)
    elif how == "special":
        choices = [np.nan, np.inf, -np.inf, 0.0, -0.0, kind.sub, -kind.tiny, kind.largest, -kind.largest, 1.0]
        picked = np.array(choices)[rng.integers(0, len(choices), shape)]
        values = np.where(rng.random(shape) < 1 / 6, picked, values)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(numpy_dtype(dtype))


def _integers(
    shape: tuple[int, ...], dtype: str, how: str, rng: np.random.Generator, sizes: Mapping[str, int]
) -> np.ndarray:
    if how.startswith("index:"):
        text = how[len("index:") :]
        count = extent(int(text) if text.isdigit() else text, sizes)
        if count == 0:
            raise Inapplicable("indices into nothing")
        return rng.integers(0, count, shape).astype(dtype)
    limits = np.iinfo(dtype)
    if how == "full":
        return rng.integers(limits.min, limits.max, shape, dtype="int64", endpoint=True).astype(dtype)
    if how == "positive":
        return rng.integers(1, 11, shape).astype(dtype)
    return rng.integers(max(limits.min, -10), 11, shape).astype(dtype)


def inputs_of(case: Case, run: int) -> list[np.ndarray]:
    """Make inputs for one run of a case. They depend only on the input and the size, not on the rest of the case."""
    sizes = case.sizes[run]
    arrays = []
    for parameter in case.inputs:
        rng = np.random.default_rng([case.seed, parameter.seed, *(sizes[name] for name in sorted(sizes))])
        shape = [extent(dim, sizes) for dim in parameter.shape]
        arrays.append(fill(shape, parameter.dtype, parameter.fill, rng, sizes))
    return arrays


def constant(attrs: Mapping[str, Any]) -> np.ndarray:
    """Make the contents of a constant step from shape, dtype, fill and seed."""
    rng = np.random.default_rng([7, attrs["seed"]])
    return fill(attrs["shape"], attrs["dtype"], attrs["fill"], rng, {})
