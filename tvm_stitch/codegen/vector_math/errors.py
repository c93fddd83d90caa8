# SPDX-License-Identifier: Apache-2.0
"""The stated errors of the float32 functions, as numbers that the tests assert and as text for people."""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """The greatest error of a function, and remarks for users.

    ``ulp`` counts units in the last place of the exact result: 6e-8 to 1.2e-7 of a normal result, and 1.4e-45 for a
    denormal one. ``relative`` bounds the relative error of normal results, if that is less than ``ulp`` times 1.2e-7.
    Just below a power of two a unit is half as large.
    """

    ulp: float
    domain: str = "all float32"
    relative: float | None = None


# Measured over every 73rd float32, dense grids and random pairs, with fused multiply-add and without.
BOUNDS: dict[str, Bound] = {
    "exp": Bound(1.1),
    "exp2": Bound(1.25),
    "exp10": Bound(1.25),
    "sigmoid": Bound(2.5, relative=2e-7),
    "tanh": Bound(6.5, "all float32; at most 1 in magnitude", relative=4e-7),
    "sinh": Bound(1.8),
    "cosh": Bound(1.5),
    "log": Bound(1.0, "all float32; NaN below 0"),
    "log2": Bound(1.7, "all float32; NaN below 0"),
    "log10": Bound(2.0, "all float32; NaN below 0"),
    "log1p": Bound(1.6, "all float32; NaN below -1"),
    "pow": Bound(0.8, "all pairs of float32, special cases as in C; constant exponents -3 to 5: 3.5 ulp"),
    "hypot": Bound(0.51, "all pairs of float32"),
    "erf": Bound(7.5, "all float32; at most 1 in magnitude", relative=4.5e-7),
    "sin": Bound(1.7),
    "cos": Bound(1.7),
    "tan": Bound(3.8),
    "asin": Bound(2.5, "[-1, 1], NaN outside"),
    "acos": Bound(1.3, "[-1, 1], NaN outside"),
    "atan": Bound(1.4),
    "atan2": Bound(1.6, "all pairs of float32, special cases as in C"),
    "asinh": Bound(2.0),
    "acosh": Bound(2.1, "[1, inf], NaN below"),
    "atanh": Bound(2.4, "[-1, 1], NaN outside"),
    "rsqrt": Bound(1.5, "all float32; NaN below 0"),
}
_EXACT = ("nearbyint", "copysign", "isnan")

MATH_ERROR: dict[str, str] = {
    name: f"at most {bound.ulp:g} ulp ({bound.relative or bound.ulp * 2.0**-23:.1e} relative); {bound.domain}"
    for name, bound in BOUNDS.items()
} | dict.fromkeys(_EXACT, "exact")
