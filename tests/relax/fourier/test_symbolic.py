# SPDX-License-Identifier: Apache-2.0
"""Transforms of a symbolic length against NumPy in float64."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

import tvm_stitch
from tests.relax.fourier.test_transform import built, error, numbers
from tvm_stitch.relax.fourier.symbolic import symbolic_spectrum


def test_one_build_for_all_lengths() -> None:
    shape = (2, tvm.tirx.Var("n", "int64"))
    mod = built(
        lambda builder, a, b: (
            *symbolic_spectrum(builder, a, b, 1, 0.5),
            *symbolic_spectrum(builder, a, None, -1),
        ),
        shape,
        shape,
    )
    main = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    for length in (1, 6, 331):
        real, imaginary = numbers(2, length)
        found = [x.numpy() for x in main(tvm.runtime.tensor(real), tvm.runtime.tensor(imaginary))]
        x = real.astype("float64") + 1j * imaginary
        assert error(found[0] + 1j * found[1], np.fft.ifft(x) * length * 0.5) < 1e-6
        assert error(found[2] + 1j * found[3], np.fft.fft(x.real)) < 1e-6
