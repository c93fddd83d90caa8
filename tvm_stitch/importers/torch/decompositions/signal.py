# SPDX-License-Identifier: Apache-2.0
"""The inverse of the short-time Fourier transform. PyTorch writes out a scatter for each position of a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def signal_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by PyTorch's overloads."""
    return {aten.istft.default: _istft}


def _istft(
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    """Transform the frames back, multiply them by the window, add them up, and divide by the sum of squared windows."""
    batched = x.dim() == 3
    frames = (x if batched else x.unsqueeze(0)).transpose(1, 2)
    hop, size = hop_length or n_fft // 4, win_length or n_fft
    if window is None:
        window = torch.ones(size, dtype=x.dtype if return_complex else x.dtype.to_real(), device=x.device)
    left = (n_fft - size) // 2
    window = torch.constant_pad_nd(window, (left, n_fft - size - left))
    norm = 1 if normalized else 2  # by the root of the length, or by the length
    if return_complex:
        signal = aten._fft_c2c(frames, [2], norm, False)
    else:
        signal = aten._fft_c2r(frames[:, :, : n_fft // 2 + 1], [2], norm, n_fft)
    count = frames.shape[1]
    total = _overlapped(signal * window, hop)
    weights = _overlapped((window * window).expand(1, count, n_fft), hop)
    whole = n_fft + hop * (count - 1)
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    result = (total / weights)[:, start:end]
    if length is not None and not isinstance(length, torch.SymInt) and isinstance(whole, int) and end > whole:
        result = torch.constant_pad_nd(result, (0, end - whole))
    return result if batched else result.squeeze(0)


def _overlapped(frames: Any, hop: int) -> Any:
    """Return the sum of frames ``[batch, count, size]``, each ``hop`` behind the one before, as ``[batch, length]``.

    Frames are cut into pieces of ``hop`` numbers, and the pieces of one number are moved and added together.
    """
    batch, count, size = frames.shape
    pieces = -(-size // hop)
    frames = torch.constant_pad_nd(frames, (0, pieces * hop - size)).reshape(batch, count, pieces, hop)
    moved = [torch.constant_pad_nd(frames[:, :, at], (0, 0, at, pieces - 1 - at)) for at in range(pieces)]
    total = moved[0]
    for each in moved[1:]:
        total = total + each
    return total.reshape(batch, (count + pieces - 1) * hop)[:, : size + hop * (count - 1)]
