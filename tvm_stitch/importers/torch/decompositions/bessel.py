# SPDX-License-Identifier: Apache-2.0
"""Bessel functions and Airy's function in PyTorch's core operators, as Chebyshev series for float32.

The series of modified functions are fits of ``exp(-x) I(x)`` up to 8, and of ``sqrt(x) exp(-x) I(x)`` in 1 / x from
there on. Those of the second kind have their logarithm and their pole apart. Other functions are waves beyond 8: series
in ``(8 / x) ** 2`` give the size of their cosine and of their sine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .special import of_floats

aten = torch.ops.aten

_NEAR_0 = (
    0.338397637, -0.304682672, 0.171620902, -0.094901097, 0.0493052842, -0.0237374148, 0.0105464604, -0.00432431,
    0.00163947562, -0.000576375575, 0.000188502885, -5.75419501e-05, 1.64484481e-05, -4.41673836e-06, 1.11738754e-06,
    -2.67079385e-07, 6.046995e-08, -1.30002499e-08,
)  # fmt: skip
_FAR_0 = (
    0.402245206, 0.00336911648, 6.88975835e-05, 2.89137052e-06, 2.04891859e-07, 2.26666899e-08, 3.39623206e-09
)  # fmt: skip
_NEAR_1 = (
    0.126293593, -0.176416518, 0.102643659, -0.0529459812, 0.024726449, -0.0105640849, 0.00415642294, -0.00151357245,
    0.000512285956, -0.000161760816, 4.78156511e-05, -1.32731637e-05, 3.47025131e-06, -8.56872026e-07, 2.00329475e-07,
    -4.44505913e-08, 9.38153728e-09,
)  # fmt: skip
_FAR_1 = (
    0.389288118, -0.00976109749, -0.000110588939, -3.88256481e-06, -2.51223624e-07, -2.63146885e-08, -3.83538038e-09
)  # fmt: skip

_J0 = (
    0.157727971, -0.00872344235, 0.265178613, -0.370094994, 0.158067102, -0.0348937694, 0.00481918007, -0.000460626166,
    3.24603288e-05, -1.76194691e-06, 7.60816359e-08, -2.67925353e-09,
)  # fmt: skip
_J1 = (
    0.0810448463, -0.148975145, 0.160999262, -0.0826804918, 0.0222136397, -0.0036469406, 0.000405033773,
    -3.25555487e-05, 1.9858774e-06, -9.52198476e-08, 3.68713376e-09,
)  # fmt: skip
_Y0 = (
    -0.0331461132, -0.274474306, 0.179034314, 0.261567346, -0.177302013, 0.0471966896, -0.00728796248, 0.000753113593,
    -5.63207914e-05, 3.20653254e-06, -1.44072333e-07, 5.24879479e-09,
)  # fmt: skip
_Y1 = (
    0.00253801324, -0.016087173, -0.0959120454, 0.0844519726, -0.0283281239, 0.00528989754, -0.000641455145,
    5.50598287e-05, -3.53808002e-06, 1.77078046e-07, -7.11055005e-09, 2.34433791e-10,
)  # fmt: skip
_COSINE_0 = (0.999460349, -0.000536522047, 3.07518479e-06, -5.17059454e-08)
_SINE_0 = (-0.124446837, 0.000547081595, -5.93159873e-06, 1.43779658e-07, -5.81753275e-09, 3.37609752e-10)
_COSINE_1 = (1.00090304, 0.000898989833, -3.9872843e-06, 6.17763396e-08)
_SINE_1 = (0.374222297, -0.000770217884, 7.31089221e-06, -1.67678251e-07, 6.58335466e-09)
_K0 = (-0.267663697, 0.3442899, 0.0359799365, 0.00126461541, 2.2862121e-05, 2.53479108e-07, 1.90451638e-09)
_K1 = (-0.0640903452, -0.109169196, -0.00663687845, -0.000168227924, -2.38955918e-06, -2.1853569e-08)
_I0 = (1.60292281, 0.638809626, 0.0368548597, 0.000982878127, 1.49836542e-05, 1.4738449e-07)
_I1 = (0.641758997, 0.14753932, 0.00589874268, 0.000119881372, 1.47391651e-06, 1.2138075e-08)
_FAR_K0 = (
    1.22015154, -0.0314481013, 0.00156988389, -0.000128495496, 1.39498137e-05, -1.83175552e-06, 2.76681364e-07,
    -4.6604899e-08, 8.57403402e-09,
)  # fmt: skip
_FAR_K1 = (
    1.3603131, 0.103923737, -0.00285781686, 0.000195215518, -1.93619797e-05, 2.40648495e-06, -3.5019606e-07,
    5.74108413e-08, -1.03457625e-08,
)  # fmt: skip
_AIRY = (
    0.0607852569, 0.189960309, -0.250924387, -0.0951201401, 0.202363242, -0.0641872831, -0.0268147032, 0.0240519043,
    -0.00413259165, -0.00201968179, 0.00112507688, -0.000116975387, -7.12549925e-05, 2.81678331e-05, -1.75947424e-06,
    -1.45872015e-06, 4.38874796e-07, -1.46270958e-08,
)  # fmt: skip
_FAR_AIRY = (
    0.984405305, -0.0147927848, 0.000732717743, -6.12595419e-05, 6.8347669e-06, -9.23722961e-07, 1.43622531e-07,
    -2.48931938e-08, 4.70979321e-09,
)  # fmt: skip
_AIRY_COSINE = (0.999370888, -0.000621683007, 7.1811779e-06, -2.31626168e-07, 1.32162183e-08)
_AIRY_SINE = (0.0688217049, -0.000608914518, 1.31741207e-05, -6.01404991e-07, 4.32751502e-08)


def bessel_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.special_airy_ai.default: of_floats(_airy),
        aten.i0.default: of_floats(lambda x: _scaled_0(x) * torch.exp(x.abs())),
        aten.special_i0e.default: of_floats(_scaled_0),
        aten.special_i1.default: of_floats(lambda x: _scaled_1(x) * torch.exp(x.abs())),
        aten.special_i1e.default: of_floats(_scaled_1),
        aten.special_modified_bessel_i0.default: of_floats(lambda x: _scaled_0(x) * torch.exp(x.abs())),
        aten.special_modified_bessel_i1.default: of_floats(lambda x: _scaled_1(x) * torch.exp(x.abs())),
        aten.special_modified_bessel_k0.default: of_floats(lambda x: _second_0(x, False)),
        aten.special_modified_bessel_k1.default: of_floats(lambda x: _second_1(x, False)),
        aten.special_scaled_modified_bessel_k0.default: of_floats(lambda x: _second_0(x, True)),
        aten.special_scaled_modified_bessel_k1.default: of_floats(lambda x: _second_1(x, True)),
        aten.special_bessel_j0.default: of_floats(_j0),
        aten.special_bessel_j1.default: of_floats(_j1),
        aten.special_bessel_y0.default: of_floats(_y0),
        aten.special_bessel_y1.default: of_floats(_y1),
        aten.special_spherical_bessel_j0.default: of_floats(_spherical),
    }


def _series(coefficients: Sequence[float], at: Any) -> Any:
    """Return a Chebyshev series at numbers between -1 and 1, by Clenshaw's recurrence."""
    later, latest = torch.zeros_like(at), torch.full_like(at, coefficients[-1])
    for coefficient in reversed(coefficients[1:-1]):
        later, latest = latest, 2.0 * at * latest - later + coefficient
    return at * latest - later + coefficients[0]


def _scaled(near: Sequence[float], far: Sequence[float], x: Any) -> tuple[Any, Any, Any]:
    """Return the magnitude of x, and both series there."""
    size = x.abs()
    inner, outer = torch.clamp(size, max=8.0), torch.clamp(size, min=8.0)
    return size, _series(near, inner * 0.25 - 1.0), _series(far, 16.0 / outer - 1.0) * torch.rsqrt(outer)


def _scaled_0(x: Any) -> Any:
    size, near, far = _scaled(_NEAR_0, _FAR_0, x)
    return torch.where(size <= 8.0, near, far)


def _scaled_1(x: Any) -> Any:
    size, near, far = _scaled(_NEAR_1, _FAR_1, x)
    value = torch.where(size <= 8.0, near * size, far)
    return torch.where(x < 0, -value, value)


def _near(coefficients: Sequence[float], x: Any, end: float) -> Any:
    """Return a series in the square of numbers up to ``end``."""
    return _series(coefficients, x * x * (2.0 / end**2) - 1.0)


def _second_0(x: Any, scaled: bool) -> Any:
    inner, outer = torch.clamp(x, max=2.0), torch.clamp(x, min=2.0)
    near = _near(_K0, inner, 2.0) - torch.log(inner * 0.5) * _near(_I0, inner, 2.0)
    return _second(x, near, _series(_FAR_K0, 4.0 / outer - 1.0), scaled)


def _second_1(x: Any, scaled: bool) -> Any:
    inner, outer = torch.clamp(x, max=2.0), torch.clamp(x, min=2.0)
    near = inner * (_near(_K1, inner, 2.0) + torch.log(inner * 0.5) * _near(_I1, inner, 2.0)) + 1.0 / inner
    return _second(x, near, _series(_FAR_K1, 4.0 / outer - 1.0), scaled)


def _second(x: Any, near: Any, far: Any, scaled: bool) -> Any:
    """Return a modified function of the second kind, given both of its series."""
    inner, outer = torch.clamp(x, max=2.0), torch.clamp(x, min=2.0)
    far = far * torch.rsqrt(outer)
    near, far = (near * torch.exp(inner), far) if scaled else (near, far * torch.exp(-outer))
    result = torch.where(x <= 2.0, near, far)
    return torch.where(x == 0.0, math.inf, torch.where(x < 0.0, math.nan, result))


def _waves(x: Any, order: int) -> tuple[Any, Any]:
    """Return functions of the first and second kind for x of 8 at least."""
    cosine, sine = ((_COSINE_0, _SINE_0), (_COSINE_1, _SINE_1))[order]
    at = 128.0 / (x * x) - 1.0
    p, q = _series(cosine, at), _series(sine, at) / x
    angle = x - (2 * order + 1) * math.pi / 4
    size = torch.rsqrt(x) * math.sqrt(2.0 / math.pi)
    cos, sin = torch.cos(angle), torch.sin(angle)
    return size * (p * cos - q * sin), size * (p * sin + q * cos)


def _j0(x: Any) -> Any:
    size = x.abs()
    inner, outer = torch.clamp(size, max=8.0), torch.clamp(size, min=8.0)
    result = torch.where(size <= 8.0, _near(_J0, inner, 8.0), _waves(outer, 0)[0])
    return torch.where(torch.isinf(x), 0.0, result)


def _j1(x: Any) -> Any:
    size = x.abs()
    inner, outer = torch.clamp(size, max=8.0), torch.clamp(size, min=8.0)
    result = torch.where(size <= 8.0, inner * _near(_J1, inner, 8.0), _waves(outer, 1)[0])
    return torch.where(torch.isinf(x), 0.0, torch.where(x < 0.0, -result, result))


def _y0(x: Any) -> Any:
    inner, outer = torch.clamp(x, max=8.0), torch.clamp(x, min=8.0)
    near = _near(_Y0, inner, 8.0) + (2.0 / math.pi) * torch.log(inner) * _near(_J0, inner, 8.0)
    return _of_positive(x, torch.where(x <= 8.0, near, _waves(outer, 0)[1]))


def _y1(x: Any) -> Any:
    inner, outer = torch.clamp(x, max=8.0), torch.clamp(x, min=8.0)
    logarithm = torch.log(inner) * inner * _near(_J1, inner, 8.0)
    near = inner * _near(_Y1, inner, 8.0) + (2.0 / math.pi) * (logarithm - 1.0 / inner)
    return _of_positive(x, torch.where(x <= 8.0, near, _waves(outer, 1)[1]))


def _of_positive(x: Any, result: Any) -> Any:
    return torch.where(x == 0.0, -math.inf, torch.where(x < 0.0, math.nan, result))


def _spherical(x: Any) -> Any:
    square = x * x
    near = 1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0))
    far = torch.sin(x) / torch.where(x == 0.0, 1.0, x)
    return torch.where(torch.isinf(x), 0.0, torch.where(x.abs() < 0.5, near, far))


def _airy(x: Any) -> Any:
    """Compute a series from -4 to 2, a wave below, and an exponential above. All have ``2 / 3 * |x| ** 1.5``."""
    inner, above, below = torch.clamp(x, -4.0, 2.0), torch.clamp(x, min=2.0), torch.clamp(-x, min=4.0)
    near = _series(_AIRY, (inner + 1.0) / 3.0)
    power = above * torch.sqrt(above) * (2.0 / 3.0)
    far = _series(_FAR_AIRY, (2.0 * (2.0 / 3.0 * 2.0**1.5)) / power - 1.0) * torch.exp(-power)
    far = far * torch.rsqrt(torch.sqrt(above)) * (0.5 / math.sqrt(math.pi))
    power = below * torch.sqrt(below) * (2.0 / 3.0)
    end = 2.0 / 3.0 * 8.0
    at = 2.0 * (end / power) ** 2 - 1.0
    wave = _series(_AIRY_COSINE, at) * torch.cos(power - math.pi / 4)
    wave = wave + _series(_AIRY_SINE, at) / power * torch.sin(power - math.pi / 4)
    wave = wave * torch.rsqrt(torch.sqrt(below)) * (1.0 / math.sqrt(math.pi))
    result = torch.where(x > 2.0, far, torch.where(x < -4.0, wave, near))
    return torch.where(torch.isinf(x), math.nan, result)
