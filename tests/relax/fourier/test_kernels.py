# SPDX-License-Identifier: Apache-2.0
"""Transforms as one kernel of a CPU, as matmuls elsewhere, and pairs that no kernel divides or joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.relax.fourier.test_transform import built, error, numbers, run
from tvm_stitch.relax.fourier.kernels import FourierTransforms
from tvm_stitch.relax.fourier.transform import ATTRIBUTE, half_spectrum, real_signal, spectrum

LLVM = tvm.target.Target("llvm")
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def _parts(builder: Any, x: Any) -> list[Any]:
    last = len(x.ty.shape) - 1
    return [builder.emit(R.squeeze(R.strided_slice(x, [last], [i], [i + 1]), [last])) for i in (0, 1)]


def _pairs(builder: Any, parts: Any) -> Any:
    return builder.emit(R.stack(list(parts), len(parts[0].ty.shape)))


def _of_pairs(builder: Any, x: Any) -> Any:
    return _pairs(builder, spectrum(builder, *_parts(builder, x), 1, 0.5))


def _to_pairs(builder: Any, x: Any) -> Any:
    return _pairs(builder, half_spectrum(builder, x))


def _from_pairs(builder: Any, x: Any) -> Any:
    return real_signal(builder, tuple(_parts(builder, x)), 2 * (int(x.ty.shape[-2]) - 1))  # type: ignore[arg-type]


def _complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + 1j * x[..., 1].astype("float64")


CASES: list[tuple[Callable[..., Any], tuple[int, ...], Callable[[Any], Any]]] = [
    (_of_pairs, (2, 3, 120, 2), lambda x: np.fft.ifft(_complex(x)) * 60),
    (_to_pairs, (2, 3, 120), lambda x: np.fft.rfft(x.astype("float64"))),
    (_from_pairs, (2, 3, 61, 2), lambda x: np.fft.irfft(_complex(x), 120) * 120),
]


@pytest.mark.parametrize(("body", "shape", "want"), CASES)
def test_pairs_are_read_and_written_by_the_kernel(
    body: Callable[..., Any], shape: tuple[int, ...], want: Callable[[Any], Any]
) -> None:
    mod = built(body, shape)
    assert "1 kernel a call: 0 stitched" in str(tvm_stitch.explain(mod, LLVM))
    x, _ = numbers(*shape)
    (found,) = run(mod, x)
    assert error(found if body is _from_pairs else _complex(found), want(x)) < 5e-7


def test_parts_that_have_another_reader_are_written_apart() -> None:
    def body(builder: Any, x: Any) -> Any:
        parts = half_spectrum(builder, x)
        return _pairs(builder, parts), parts[1]

    mod = built(body, (3, 96))
    assert "2 kernels a call: 1 stitched" in str(tvm_stitch.explain(mod, LLVM))
    x, _ = numbers(3, 96)
    pairs, imaginary = run(mod, x)
    want = np.fft.rfft(x.astype("float64"))
    assert error(_complex(pairs), want) < 5e-7 and error(imaginary, want.imag) < 5e-7


def test_parts_in_another_order_are_no_pairs() -> None:
    def body(builder: Any, x: Any) -> Any:
        imaginary, real = _parts(builder, x)
        return spectrum(builder, real, imaginary, -1)

    x, _ = numbers(2, 80, 2)
    first, second = run(built(body, x.shape), x)
    assert error(first + 1j * second, np.fft.fft(x[..., 1] + 1j * x[..., 0].astype("float64"))) < 5e-7


def test_an_odd_number_of_real_numbers() -> None:
    x, imaginary = numbers(2, 625)

    def body(builder: Any, a: Any, b: Any) -> Any:
        parts = half_spectrum(builder, a, -1, 0.5)
        cut = [builder.emit(R.strided_slice(each, [1], [0], [313])) for each in (a, b)]
        return (*parts, real_signal(builder, (cut[0], cut[1]), 625))

    real, imag, signal = run(built(body, x.shape, x.shape), x, imaginary)
    assert error(real + 1j * imag, np.fft.rfft(x.astype("float64")) * 0.5) < 5e-7 and not imag[:, 0].any()
    given = (x + 1j * imaginary.astype("float64"))[:, :313]
    assert error(signal, np.fft.irfft(given, 625) * 625) < 5e-7


def test_rows_are_an_expression_of_a_symbol() -> None:
    shape = (tvm.tirx.Var("n", "int64"), 3, 64)
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), shape, shape)
    main = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    for count in (1, 7, 200):
        real, imaginary = numbers(count, 3, 64)
        first, second = (x.numpy() for x in main(tvm.runtime.tensor(real), tvm.runtime.tensor(imaginary)))
        assert error(first + 1j * second, np.fft.fft(real.astype("float64") + 1j * imaginary)) < 5e-7


def test_other_targets_get_matmuls() -> None:
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), (4, 1024), (4, 1024))
    assert [func for func in mod.functions.values() if func.attrs and ATTRIBUTE in func.attrs]
    made = FourierTransforms(CUDA)(mod)
    assert len(made.functions) == 1 and str(made).count("R.matmul") == 3
    text = str(FourierTransforms(LLVM)(mod))
    assert "R.matmul" not in text and text.count("R.call_tir") == 1
    bare = built(lambda builder, a: builder.emit(R.add(a, a)), (4, 4))
    assert FourierTransforms(LLVM)(bare).same_as(bare)


def test_tvm_alone_compiles_the_function() -> None:
    real, imaginary = numbers(2, 120)
    mod = built(lambda builder, a, b: spectrum(builder, a, b, -1), real.shape, real.shape)
    main = relax.VirtualMachine(tvm.compile(mod, LLVM), tvm.cpu())["main"]
    first, second = (x.numpy() for x in main(tvm.runtime.tensor(real), tvm.runtime.tensor(imaginary)))
    assert error(first + 1j * second, np.fft.fft(real.astype("float64") + 1j * imaginary)) < 5e-7
