# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy as tensors of TVM, and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm

from tvm_stitch.execution.tensors import TensorSpec
from tvm_stitch.front.tensors import given_back, taken

ARRAYS = [
    np.arange(24, dtype="float32").reshape(4, 6)[:, ::2],
    np.arange(24, dtype="float32").reshape(4, 6).T,
    np.arange(4).astype("float16"),
    np.arange(4).astype(ml_dtypes.bfloat16),
    np.array([True, False]),
    np.zeros((0, 3), "int64"),
    np.array(5, "int8"),
    np.float64(2.5),
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{list(value.shape)}")
def test_arrays_are_copied_to_aligned_memory(value: np.ndarray) -> None:
    spec = TensorSpec("x", tuple(value.shape), str(value.dtype))
    tensor = taken(value, spec, tvm.cpu(0))
    assert tuple(tensor.shape) == value.shape and str(tensor.dtype) == str(value.dtype)
    back = given_back(tensor, "numpy")
    assert back.dtype == value.dtype and np.array_equal(back, value)
    assert back.flags.writeable and not np.shares_memory(back, given_back(tensor, "numpy"))


def test_a_read_only_array_is_not_changed() -> None:
    value = np.arange(3, dtype="float32")
    value.flags.writeable = False
    tensor = taken(value, TensorSpec("x", (3,), "float32"), tvm.cpu(0))
    memory = np.from_dlpack(tensor)
    assert memory.ctypes.data % 64 == 0 and not np.shares_memory(memory, value)
