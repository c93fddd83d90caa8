# SPDX-License-Identifier: Apache-2.0
"""Modified Bessel functions of the first kind in PyTorch's core operators, as Chebyshev series for float32.

The series are fits of ``exp(-x) I(x)`` up to 8, and of ``sqrt(x) exp(-x) I(x)`` in 1 / x from there on.
"""

from __future__ import annotations

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


def bessel_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {
        aten.i0.default: of_floats(lambda x: _scaled_0(x) * torch.exp(x.abs())),
        aten.special_i0e.default: of_floats(_scaled_0),
        aten.special_i1.default: of_floats(lambda x: _scaled_1(x) * torch.exp(x.abs())),
        aten.special_i1e.default: of_floats(_scaled_1),
        aten.special_modified_bessel_i0.default: of_floats(lambda x: _scaled_0(x) * torch.exp(x.abs())),
        aten.special_modified_bessel_i1.default: of_floats(lambda x: _scaled_1(x) * torch.exp(x.abs())),
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
