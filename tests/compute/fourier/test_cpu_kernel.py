# SPDX-License-Identifier: Apache-2.0
"""Kernels of Fourier transforms against NumPy in float64, with vectors of all lengths."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_stitch.compute.fourier.cpu_kernel import Layout, fourier_kernel, twiddles
from tvm_stitch.compute.fourier.transform import Transform

CASES = [
    (Transform("complex", 36, -1), 4),  # stores one by one, and whole vectors of four
    (Transform("complex", 45, 1, 0.5), 4),  # odd radices: a last vector that begins earlier
    (Transform("complex", 512, 1, 2.0), 16),
    (Transform("complex", 11 * 13, -1), 8),
    (Transform("half", 120, -1, 0.25), 4),
    (Transform("half", 2 * 625, 1), 16),
    (Transform("real", 64, 1, 1 / 64), 8),
    (Transform("real", 2 * 243, -1), 4),
]


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("transform", "lanes"), CASES)
def test_rows(transform: Transform, lanes: int, pairs: bool) -> None:
    error = _error(transform, lanes, 3, "float32", Layout(pairs, pairs), transform.length * 2)
    assert error < 5e-7


@pytest.mark.parametrize("rows", [1, 5])
def test_float64_and_a_symbolic_number_of_rows(rows: int) -> None:
    for kind in ("complex", "half", "real"):
        transform = Transform(kind, 96, -1)  # type: ignore[arg-type]
        assert _error(transform, 4, rows, "float64", Layout(), 96, symbolic=True) < 1e-14


def test_all_parts_of_a_spectrum_may_have_a_layout_of_their_own() -> None:
    for layout in (Layout(True, False), Layout(False, True)):
        assert _error(Transform("complex", 60, -1), 4, 2, "float32", layout, 0) < 5e-7


def test_twiddles_of_long_transforms_are_exact() -> None:
    found = twiddles(Transform("complex", 65536, -1), 16)
    assert len(found) < 3 * 65536
    size = found[: 2 * 4096] ** 2  # cosines and sines of the first stage
    np.testing.assert_allclose(size[:4096] + size[4096:], 1, rtol=1e-15)


def _error(
    transform: Transform,
    lanes: int,
    rows: int,
    dtype: str,
    layout: Layout,
    serial: int,
    symbolic: bool = False,
) -> float:
    """Return the greatest error of a kernel, divided by the greatest number."""
    extent = tirx.Var("rows", "int64") if symbolic else rows
    func = fourier_kernel(transform, layout, extent, dtype, lanes, serial)
    built = tvm.tirx.build(func.with_attr("global_symbol", "main"), target="llvm")
    x, want = _case(transform, rows)
    given = [x.astype(dtype)] if transform.kind == "half" else _parts(x, dtype, layout.pairs_in)
    results = (
        [np.zeros(want.shape, dtype)]
        if transform.kind == "real"
        else _parts(want * 0, dtype, layout.pairs_out)
    )
    table = twiddles(transform, lanes).astype(dtype)
    args = [tvm.runtime.tensor(each) for each in [*given, table, *results]]
    built["main"](*args)
    found = [each.numpy() for each in args[-len(results) :]]
    if transform.kind != "real":
        parts = found if len(found) == 2 else [found[0][:, ::2], found[0][:, 1::2]]
        found = [parts[0] + 1j * parts[1]]
    return float(np.abs(found[0] - want).max() / np.abs(want).max())


def _case(transform: Transform, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an input, and its transform in float64."""
    draw = np.random.default_rng(transform.length)
    length, sign = transform.length, transform.sign
    columns = transform.half if transform.kind == "real" else length
    x = draw.standard_normal((rows, columns)) + 1j * draw.standard_normal((rows, columns))
    if transform.kind == "half":
        x = x.real
    if transform.kind == "real":
        # Imaginary parts of the ends do not count. The other sign is the transform of the conjugate.
        given = x if sign > 0 else x.conj()
        return x, np.fft.irfft(given, length) * length * transform.scale
    want = np.fft.fft(x) if sign < 0 else np.fft.ifft(x) * length
    return x, want[:, : transform.half if transform.kind == "half" else length] * transform.scale


def _parts(x: np.ndarray, dtype: str, pairs: bool) -> list[np.ndarray]:
    if pairs:
        return [np.stack([x.real, x.imag], -1).reshape(len(x), -1).astype(dtype)]
    return [np.ascontiguousarray(part).astype(dtype) for part in (x.real, x.imag)]
