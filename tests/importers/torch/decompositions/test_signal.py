# SPDX-License-Identifier: Apache-2.0
"""Short-time Fourier transforms and their inverse, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.importers.torch.programs import compare, compiled, imported, same  # noqa: E402
from tvm_stitch.importers.torch.decompositions.signal import _overlapped  # noqa: E402


def test_there_and_back() -> None:
    def back(
        x: Any, size: int, hop: int, win: int | None = None, length: int | None = None, **how: Any
    ) -> Any:
        window = torch.hann_window(win or size)
        frames = torch.stft(x, size, hop, win, window, return_complex=True, **how)
        return torch.istft(frames, size, hop, win, window, length=length, **how)

    compare(
        {
            "a hop that divides nothing": lambda x: back(x, 16, 5),
            "a short window": lambda x: back(x, 16, 3, 11),
            "normalized": lambda x: back(x, 16, 4, normalized=True),
            "both sides": lambda x: back(x, 16, 4, onesided=False),
            "one signal of a length": lambda x: [back(x[0], 16, 8, length=90), back(x[0], 16, 8, length=110)],
        },
        torch.randn(2, 100, generator=torch.Generator().manual_seed(0)),
        tolerance=1e-5,
    )


def test_complex_signals() -> None:
    def both(x: Any) -> Any:
        window = torch.hamming_window(12)
        frames = torch.stft(x, 12, 4, window=window, onesided=False, return_complex=True)
        return [frames, torch.istft(frames, 12, 4, window=window, onesided=False, return_complex=True)]

    compare({"complex": both}, torch.randn(2, 60, dtype=torch.complex64), tolerance=1e-5)


def test_symbolic_rows_and_lengths() -> None:
    window = torch.hann_window(16)

    def loud(x: Any) -> Any:
        frames = torch.stft(x, 16, 8, window=window, return_complex=True)
        return [frames, torch.istft(frames * 2, 16, 8, window=window)]

    dims = {0: torch.export.Dim("rows", max=8), 1: torch.export.Dim("length", min=32, max=999)}
    x = torch.randn(2, 100)
    run = compiled(imported(loud, x, dynamic=((dims,),)))
    for other in (x, torch.randn(3, 250)):
        for got, want in zip(run(other), loud(other), strict=True):
            assert same(got, want, 1e-5)


@pytest.mark.parametrize("hop", [1, 3, 4, 7])
def test_overlapped_frames_are_added(hop: int) -> None:
    frames = torch.randn(2, 5, 7, dtype=torch.float64)
    want = torch.zeros(2, 7 + 4 * hop, dtype=torch.float64)
    for at in range(5):
        want[:, at * hop : at * hop + 7] += frames[:, at]
    assert torch.allclose(_overlapped(frames, hop), want)
