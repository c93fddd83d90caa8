# SPDX-License-Identifier: Apache-2.0
"""Float constants in CUDA C under a TVM with Relay, which writes seven digits of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relay

from tests.relay.codegen.gpu_kernels import GpuKernel, function
from tvm_stitch.relay.cuda_source import compile_with_nvrtc
from tvm_stitch.repairs.tir.exact_constants import is_exact_in_seven_digits


@pytest.mark.parametrize("value", [0.1, 1 / 3, -2 / 3, 1e-11 / 3, 4.0, 0.5, 16777217.0, 1e30 / 7], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_is_exact(dtype: str, value: float) -> None:
    kernel = GpuKernel(function([(3, 5)], dtype, lambda x: x * relay.const(value, dtype)))
    x = np.exp2(np.random.default_rng(0).integers(-8, 8, (3, 5))).astype(dtype)
    (got,) = kernel(x).check().outputs
    np.testing.assert_array_equal(got, x * np.dtype(dtype).type(value))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_least_number_is_its_own_maximum(dtype: str) -> None:
    """The start value of a reduction has more than seven digits as well."""
    kernel = GpuKernel(function([(4, 70)], dtype, lambda x: relay.max(x, 1)))
    least = np.finfo(dtype).min
    (got,) = kernel(np.full((4, 70), least, dtype)).check().outputs
    np.testing.assert_array_equal(got, np.full(4, least, dtype))


def test_short_constants_stay_readable() -> None:
    kernel = GpuKernel(
        function([(8,)], "float32", lambda x: x * relay.const(0.1) + relay.const(0.3333333433))
    )
    assert "1.000000e-01f" in kernel.kernels
    assert set(re.findall(r"__int_as_float\((\d+)\)", kernel.kernels)) == {"1051372203"}


def test_nvrtc_takes_them() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    kernel = GpuKernel(function([(8,)], "float64", lambda x: x * relay.const(1 / 3, "float64")))
    assert "__longlong_as_double" in kernel.kernels
    assert compile_with_nvrtc(kernel.source).startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("value", "dtype", "exact"),
    [
        (1 / 3, "float32", False), (float(np.float32(0.1)), "float32", True), (0.1, "float64", True),
        (float(np.float32(0.1)), "float64", False), (1.0000001, "float32", False), (float("inf"), "float32", True),
        (float("nan"), "float64", True), (-0.0, "float32", True), (-3.4028234663852886e38, "float32", False),
        (1.7976931348623157e308, "float64", False),
    ],
)  # fmt: skip
def test_what_seven_digits_tell(value: float, dtype: str, exact: bool) -> None:
    assert is_exact_in_seven_digits(value, dtype) is exact
