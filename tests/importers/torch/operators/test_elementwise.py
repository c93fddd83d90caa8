# SPDX-License-Identifier: Apache-2.0
"""Operators of single elements: integers in float functions, remainders of negative numbers, NaN, rounding."""

from __future__ import annotations

import math

import torch

from tests.importers.torch.programs import compare, refusal

INFINITE = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.5]


def test_floats_of_integers() -> None:
    names = "acosh asinh atan cosh expm1 log10 log1p log2 rsqrt sinh sqrt tan exp sin sigmoid erf".split()
    compare(
        {name: lambda x, b, name=name: [getattr(torch, name)(x), getattr(torch, name)(b)] for name in names},
        torch.tensor([1, 2, 3]),
        torch.tensor([True, True]),
    )


def test_small_numbers_keep_their_digits() -> None:
    x = torch.tensor([1e-6, -3e-5, 0.2, -0.4, 3.0, 0.0])
    compare({"expm1": lambda x: torch.expm1(x) / x.abs().clamp(1e-9)}, x, tolerance=1e-5)
    compare({"log1p": lambda x: torch.log1p(x) / x.abs().clamp(1e-9)}, x, tolerance=1e-5)


def test_no_number_and_infinities() -> None:
    x = torch.tensor(INFINITE)
    compare(
        {
            "extremes": lambda x, y: [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)],
            "clamped": lambda x, y: [x.clamp(-1, 1), x.relu(), torch.nn.functional.hardtanh(x)],
            "reduced": lambda x, y: [x.amax(), x.amin(0), *x.max(0)[:1]],
            "tests": lambda x, y: [x.isnan(), x.isinf(), x.isfinite(), torch.signbit(x), x != 0],
            "logical": lambda x, y: [x.bool(), torch.logical_not(x), torch.logical_and(x, y)],
            "functions": lambda x, y: [x.exp(), torch.expm1(x), torch.log1p(x.abs()), x.tanh()],
        },
        x,
        x.flip(0),
    )


def test_views_of_bits() -> None:
    pairs = (
        "float32 int32",
        "int32 float32",
        "float64 uint64",
        "int64 float64",
        "float16 int16",
        "int16 uint16",
    )

    def viewed(x: torch.Tensor) -> list[torch.Tensor]:
        types = [[getattr(torch, name) for name in pair.split()] for pair in pairs]
        halves = x.to(torch.int16).view(torch.bfloat16).float()
        return [*((x * 9).to(before).view(after) for before, after in types), halves]

    compare({"views": viewed}, torch.tensor([0.0, -0.0, 1.5, -2000.25, math.inf]).nan_to_num(posinf=3e3))
    assert "a view of the bits of float32 as int16" in refusal(
        lambda x: x.view(torch.int16), torch.ones(2, 2)
    )


def test_remainders_and_quotients() -> None:
    compare(
        {
            "remainder": lambda i, j, x, y: [i % j, x % y, torch.remainder(x, 0.3), i % 3],
            "fmod": lambda i, j, x, y: [torch.fmod(i, j), torch.fmod(x, y), torch.fmod(x, -0.3)],
            "down": lambda i, j, x, y: [i // j, x // y, x // 0.1, torch.div(i, j, rounding_mode="floor")],
            "to zero": lambda i, j, x, y: [
                torch.div(a, b, rounding_mode="trunc") for a, b in ((i, j), (x, y))
            ],
            "shifts": lambda i, j, x, y: [i << 2, i >> 1, torch.bitwise_left_shift(i, j.abs()), 1 << j.abs()],
        },
        torch.tensor([7, -7, 7, -7, 6, -6, 0]),
        torch.tensor([3, 3, -3, -3, 3, 3, 5]),
        torch.tensor([1.0, -1.0, 5.3, -5.3, 0.7, -0.0, 6.0]),
        torch.tensor([0.1, 0.1, -2.1, 2.1, 0.7, 3.0, -1.5]),
    )


def test_rounding() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, -2.6])
    compare(
        {
            "to even": lambda x: [x.round(), x.floor(), x.ceil(), x.trunc()],
            "decimals": lambda x: [torch.round(x * 1.237, decimals=2), torch.round(x * 100, decimals=-2)],
            "casts": lambda x: [x.int(), x.long(), x.bool(), (x * 3).to(torch.int8)],
            "integers": lambda x: [x.long().round(), x.long().floor(), x.long().ceil()],
        },
        x,
    )


def test_half_types() -> None:
    x = torch.randn(4, 9).half()
    compare(
        {
            "functions": lambda x: [x.tan(), x.asinh(), torch.expm1(x), x.abs().sqrt(), torch.log1p(x.abs())],
            "numbers": lambda x: [x * 1e6, x + 1e6, torch.nn.functional.leaky_relu(x, 0.3)],
        },
        x,
        tolerance=4e-3,
    )
