# SPDX-License-Identifier: Apache-2.0
"""Special functions, against PyTorch in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.importers.torch.programs import compiled, imported, refusal

FUNCTIONS = {
    "erfc": (torch.erfc, torch.linspace(-4, 9, 200)),
    "erfinv": (torch.erfinv, torch.linspace(-0.999, 0.999, 101)),
    "lgamma": (torch.lgamma, torch.cat([torch.linspace(0.01, 40, 200), torch.linspace(-5.3, -0.1, 40)])),
    "digamma": (torch.digamma, torch.cat([torch.linspace(0.01, 40, 200), torch.linspace(-5.35, -0.15, 40)])),
    "special_erfcx": (torch.special.erfcx, torch.linspace(-5, 60, 200)),
    "special_i0e": (torch.special.i0e, torch.linspace(-30, 300, 200)),
    "special_i1e": (torch.special.i1e, torch.linspace(-30, 300, 200)),
    "i0": (torch.i0, torch.linspace(-20, 20, 101)),
    "special_ndtri": (
        torch.special.ndtri,
        torch.cat([torch.logspace(-37, -1, 100), torch.linspace(0.1, 0.9999, 99)]),
    ),
    "polygamma": (
        lambda x: torch.polygamma(2, x),
        torch.cat([torch.linspace(0.1, 40, 100), torch.linspace(-15.35, -0.15, 20)]),
    ),
    "special_zeta": (
        lambda x: torch.special.zeta(x, torch.linspace(0.3, 20, x.shape[0], dtype=x.dtype)),
        torch.linspace(1.1, 30, 50),
    ),
}


def test_against_float64() -> None:
    names, inputs = list(FUNCTIONS), [x for _, x in FUNCTIONS.values()]
    run = compiled(imported(lambda *x: [FUNCTIONS[n][0](each) for n, each in zip(names, x)], *inputs))
    for name, got in zip(names, run(*inputs), strict=True):
        function, x = FUNCTIONS[name]
        want = function(x.double()).numpy()
        scale = np.maximum(np.abs(want), 1.0) if name == "polygamma" else 1.0
        np.testing.assert_allclose(got / scale, want / scale, rtol=3e-5, atol=3e-6, err_msg=name)
        if name == "erfc":  # small numbers keep their digits
            large = x.numpy() > 2
            np.testing.assert_allclose(got[large], want[large], rtol=3e-5)


def test_limits() -> None:
    x = torch.tensor([0.0, 1.0, -1.0, -3.0, math.inf, math.nan])
    functions = (
        torch.special.ndtri,
        torch.special.erfcx,
        lambda x: torch.special.zeta(x, x),
        torch.special.i1e,
    )
    run = compiled(imported(lambda x: [function(x) for function in functions], x))
    for got, function in zip(run(x), functions, strict=True):
        np.testing.assert_allclose(got, function(x.double()).numpy(), rtol=1e-5)


def test_sums_of_exponentials() -> None:
    a, b = torch.tensor([1.0, -math.inf, math.inf, 300.0]), torch.tensor([2.0, -math.inf, 1.0, -300.0])
    run = compiled(imported(lambda a, b: [torch.logaddexp(a, b), torch.logaddexp2(a, b)], a, b))
    for got, want in zip(run(a, b), (torch.logaddexp(a, b), torch.logaddexp2(a, b)), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def test_a_program_of_zeta_has_few_powers() -> None:
    """Thirty powers took seven times as long to compile."""
    x = torch.arange(1, 6)
    text = imported(torch.special.zeta, x, x).script()
    assert 0 < text.count("R.power(") <= 6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_is_refused(name: str) -> None:
    assert f"{name}.default" in refusal(FUNCTIONS[name][0], torch.rand(3, dtype=torch.float64))
