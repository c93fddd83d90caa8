# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of PyTorch programs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.complexes.test_arithmetic import numbers  # noqa: E402
from tests.importers.torch.programs import compare, compiled, imported, refusal, same  # noqa: E402

fft: Any = torch.fft


def test_complex_transforms() -> None:
    compare(
        {
            "one axis": lambda x: [
                fft.fft(x),
                fft.ifft(x),
                fft.fft(x, dim=0),
                fft.fft(x, n=9),
                fft.ifft(x, n=3),
            ],
            "norms": lambda x: [
                getattr(fft, f)(x, norm=n) for f in ("fft", "ifft") for n in ("ortho", "forward")
            ],
            "several axes": lambda x: [fft.fft2(x), fft.ifftn(x), fft.fftn(x, dim=(0, 2), norm="ortho")],
            "shifts": lambda x: [fft.fftshift(fft.fft(x)), fft.ifftshift(x, dim=1)],
        },
        numbers(2, 5, 6),
        tolerance=1e-5,
    )


def test_real_transforms() -> None:
    compare(
        {
            "one axis": lambda x: [
                fft.rfft(x),
                fft.rfft(x, n=7),
                fft.rfft(x, dim=1, norm="ortho"),
                fft.fft(x),
            ],
            "several axes": lambda x: [fft.rfft2(x), fft.rfftn(x, norm="forward"), fft.rfftn(x, dim=(2, 0))],
            "hermitian": lambda x: [fft.ihfft(x).resolve_conj(), fft.ihfft2(x).resolve_conj()],
            "phases": lambda x: [fft.rfft(x.abs()).angle()[..., 0], fft.rfft(-x.abs()).angle()[..., 0]],
        },
        numbers(2, 5, 6).real.contiguous(),
        tolerance=1e-5,
    )


def test_transforms_to_real_signals() -> None:
    compare(
        {
            "one axis": lambda x: [fft.irfft(x), fft.irfft(x, n=9), fft.irfft(x, n=4), fft.irfft(x, dim=1)],
            "norms": lambda x: [fft.irfft(x, norm="ortho"), fft.hfft(x, norm="forward")],
            "several axes": lambda x: [fft.irfft2(x), fft.irfftn(x, dim=(0, 1), norm="ortho"), fft.hfft2(x)],
        },
        numbers(2, 5, 6),
        tolerance=1e-5,
    )


def test_a_symbolic_length_is_transformed() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return fft.fft(fft.fft(x, dim=-1), dim=-2).real

    rows, length = torch.export.Dim("rows", max=16), torch.export.Dim("length", min=2, max=99)
    x = numbers(2, 7, 4).real.contiguous()
    run = compiled(imported(mixed, x, dynamic=(({0: rows, 1: length},),)))
    for other in (x, numbers(3, 21, 4).real.contiguous()):
        assert same(run(other)[0], mixed(other), 1e-5)


def test_normalizations_of_symbolic_lengths_are_refused() -> None:
    length = torch.export.Dim("length", min=2, max=99)
    text = refusal(lambda x: fft.ifft(x).real, numbers(2, 7), dynamic=(({1: length},),))
    assert text.startswith("_fft_c2c.default") and "normalized" in text
