# SPDX-License-Identifier: Apache-2.0
"""Transforms of all lengths against NumPy in float64, and their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_stitch
from tvm_stitch.relax.fourier import transform
from tvm_stitch.relax.fourier.transform import half_spectrum, real_signal, spectrum

LENGTHS = [1, 2, 3, 64, 90, 1042]
"""One and two factors, odd ones, and twice a large prime number."""


def built(body: Callable[..., Any], *shapes: tuple[Any, ...], dtype: str = "float32") -> tvm.IRModule:
    """Return a module whose function returns what ``body`` makes of a builder and of tensors."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(list(shape), dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            found = body(builder, *params)
            result = builder.emit_output(relax.Tuple(found) if isinstance(found, tuple) else found)
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    main = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    found = main(*map(tvm.runtime.tensor, arrays))
    return [found.numpy()] if hasattr(found, "numpy") else [x.numpy() for x in found]


def error(found: np.ndarray, want: np.ndarray) -> float:
    assert found.shape == want.shape
    return float(np.abs(found - want).max() / np.abs(want).max())


def numbers(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.standard_normal(shape).astype("float32"), draw.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("length", LENGTHS)
def test_all_transforms(length: int) -> None:
    real, imaginary = numbers(2, length)
    half = length // 2 + 1

    def body(builder: Any, a: Any, b: Any) -> Any:
        cut = tuple(builder.emit(relax.op.strided_slice(x, [1], [0], [half])) for x in (a, b))
        return (
            *spectrum(builder, a, b, -1, 0.5),
            *spectrum(builder, a, b, 1),
            *spectrum(builder, a, None, -1),
            *half_spectrum(builder, a),
            real_signal(builder, (cut[0], cut[1]), length, scale=1 / length),
        )

    found = run(built(body, real.shape, real.shape), real, imaginary)
    x = real.astype("float64") + 1j * imaginary
    wanted = [np.fft.fft(x) * 0.5, np.fft.ifft(x) * length, np.fft.fft(x.real), np.fft.rfft(x.real)]
    for at, want in enumerate(wanted):
        assert error(found[2 * at] + 1j * found[2 * at + 1], want) < 6e-7
    assert error(found[8], np.fft.irfft(x[:, :half], length)) < 6e-7


def test_ends_of_a_real_signal_are_real() -> None:
    real, _ = numbers(3, 100)
    mod = built(lambda builder, x: half_spectrum(builder, x), real.shape)
    _, imaginary = run(mod, real)
    assert not imaginary[:, [0, 50]].any() and imaginary[:, 1:50].all()


def test_a_long_transform_is_as_exact_as_a_short_one() -> None:
    real, imaginary = numbers(1, 65536)
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), real.shape, real.shape)
    first, second = run(mod, real, imaginary)
    assert error(first + 1j * second, np.fft.fft(real.astype("float64") + 1j * imaginary)) < 5e-7


def test_float64_and_a_symbolic_number_of_rows() -> None:
    real, imaginary = (x.astype("float64") for x in numbers(3, 2, 24))
    shape = (tvm.tirx.Var("n", "int64"), 2, 24)
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), shape, shape, dtype="float64")
    first, second = run(mod, real, imaginary)
    assert error(first + 1j * second, np.fft.fft(real + 1j * imaginary)) < 1e-15


def test_a_factor_is_one_matmul_and_the_rest_is_stitched() -> None:
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), (4, 1024), (4, 1024))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    text = str(tvm_stitch.explain(mod, target, tvm_stitch.StitchConfig(compute="tvm")))
    assert "7 kernels a call: 4 stitched (4 different), 3 around a compute-intensive operator" in text


def test_work_stays_near_the_sum_of_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    matmul = relax.op.matmul
    monkeypatch.setattr(
        transform.R, "matmul", lambda a, b: sizes.append(tuple(map(int, b.ty.shape))) or matmul(a, b)
    )
    built(lambda builder, a, b: spectrum(builder, a, b, -1), (1, 4096), (1, 4096))
    built(lambda builder, a: half_spectrum(builder, a), (1, 4096))
    assert sizes == [(32, 32)] * 3 + [(16, 18)] + [(32, 32)] * 2
