# SPDX-License-Identifier: Apache-2.0
"""The functions of cublaslt.cc in NumPy: products that CUDA code would do run where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

NAME = "tests.cublaslt.matmul"


def _matrices(
    array: np.ndarray, lines: int, length: int, line: int, batch: int, stride: int, turned: bool
) -> np.ndarray:
    """Return a batch of matrices in a tensor, as float64. If ``turned``, the lines are columns."""
    flat = array.reshape(-1)
    if lines and length and batch:
        assert (lines - 1) * line + length + (batch - 1) * stride <= flat.size
    item = flat.itemsize
    strides = (stride * item, line * item, item)
    found = np.lib.stride_tricks.as_strided(flat, (batch, lines, length), strides, writeable=True)
    return found.transpose(0, 2, 1) if turned else found


def matmul(*args: Any) -> None:
    """``tvm_stitch.cublaslt.matmul``, with as much float64 as it takes."""
    left, right, *extras, numbers, mode, out, workspace = args
    m, n, k, batch, left_line, right_line, out_line, left_batch, right_batch, out_batch = map(int, numbers)
    words = str(mode).split()
    assert set(words) <= {"left_transposed", "right_transposed", "bias", "relu", "residual", "tf32", "timed"}
    assert workspace.dtype == "uint8"
    lt, rt = "left_transposed" in words, "right_transposed" in words
    arrays = [t.numpy() for t in (left, right)]
    a = _matrices(arrays[0], *((k, m) if lt else (m, k)), left_line, batch, left_batch, lt)
    b = _matrices(arrays[1], *((n, k) if rt else (k, n)), right_line, batch, right_batch, rt)
    value = a.astype("float64") @ b.astype("float64")
    given = list(extras)
    if "bias" in words:
        value = value + given.pop(0).numpy().astype("float64")
    made = np.full(tuple(out.shape), np.nan, out.numpy().dtype)
    if "residual" in words:
        other = given.pop(0).numpy()
        value = value + _matrices(other, m, n, out_line, batch, out_batch, False).astype("float64")
    assert not given
    value = np.maximum(value, 0) if "relu" in words else value
    _matrices(made, m, n, out_line, batch, out_batch, False)[...] = value.astype(made.dtype)
    out.copyfrom(made)


tvm.register_global_func(NAME, matmul, override=True)
