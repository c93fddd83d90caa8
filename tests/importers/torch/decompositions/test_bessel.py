# SPDX-License-Identifier: Apache-2.0
"""Bessel functions against PyTorch in float64. Those that oscillate are as exact as PyTorch's of float32."""

from __future__ import annotations

import math

import numpy as np
import torch

from tests.importers.torch.programs import compiled, imported

S = torch.special
EVERYWHERE = {"j0": S.bessel_j0, "j1": S.bessel_j1, "spherical": S.spherical_bessel_j0}
POSITIVE = {
    "y0": S.bessel_y0,
    "y1": S.bessel_y1,
    "k0": S.modified_bessel_k0,
    "k1": S.modified_bessel_k1,
    "scaled k0": S.scaled_modified_bessel_k0,
    "scaled k1": S.scaled_modified_bessel_k1,
}


def test_against_float64() -> None:
    x = torch.cat([torch.linspace(-40, 40, 161), torch.tensor([0.0, 8.0, -8.0])])
    functions = {**EVERYWHERE, **POSITIVE}
    given = {name: x if name in EVERYWHERE else x.abs() + 0.01 for name in functions}
    run = compiled(
        imported(lambda x: [functions[name](given[name] * 1.0 + 0.0 * x) for name in functions], x)
    )
    for (name, function), got in zip(functions.items(), run(x), strict=True):
        want = function(given[name].double()).numpy()
        if "k" in name:
            np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=name)


def test_limits() -> None:
    x = torch.tensor([0.0, -1.0, 200.0])
    functions = list(POSITIVE.values())
    run = compiled(imported(lambda x: [function(x) for function in functions], x))
    for got, function in zip(run(x), functions, strict=True):
        np.testing.assert_allclose(got, function(x.double()).numpy(), rtol=2e-5, atol=1e-7)
    ends = torch.tensor([math.inf, -math.inf])
    run = compiled(imported(lambda x: [function(x) for function in EVERYWHERE.values()], ends))
    assert all((got == 0).all() for got in run(ends))


def test_airys_function() -> None:
    x = torch.cat(
        [torch.linspace(-20, 20, 161), torch.tensor([2.01, -4.01, 110.0, math.inf, -math.inf, math.nan])]
    )
    run = compiled(imported(lambda x: [S.airy_ai(x), S.airy_ai(x.to(torch.int64))], x.nan_to_num(0, 9, -9)))
    whole = x.nan_to_num(0, 9, -9).to(torch.int64)
    np.testing.assert_allclose(run(x.nan_to_num(0, 9, -9))[1], S.airy_ai(whole).numpy(), rtol=1e-5, atol=1e-6)
    run = compiled(imported(lambda x: [S.airy_ai(x)], x))
    # Exponents up to 60 and angles up to 60 have errors of 60 roundings.
    np.testing.assert_allclose(run(x)[0], S.airy_ai(x.double()).numpy(), rtol=1e-5, atol=2e-6)
    above = x[(x > 0) & (x < 15)]
    np.testing.assert_allclose(
        compiled(imported(lambda x: [S.airy_ai(x)], above))(above)[0],
        S.airy_ai(above.double()).numpy(),
        rtol=1e-5,
    )
