# SPDX-License-Identifier: Apache-2.0
"""What the function of cudnn.cc computes, in NumPy: convolutions that CUDA code would do run where there is no GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm

NAME = "tests.cudnn.convolution"


def convolution(data: Any, weight: Any, numbers: Any, mode: Any, out: Any, workspace: Any) -> None:
    """``tvm_stitch.cudnn.convolution`` in float64."""
    words = str(mode).split()
    assert len({"channels_first", "channels_last"} & set(words)) == 1
    assert set(words) <= {"channels_first", "channels_last", "tf32", "timed"} and workspace.dtype == "uint8"
    last = "channels_last" in words
    x, w = (t.numpy().astype("float64") for t in (data, weight))
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    rank = x.ndim - 2
    groups, *rest = map(int, numbers)
    strides, padding, dilation = (rest[i * rank : (i + 1) * rank] for i in range(3))
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    kernel = w.shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    places = [(e - span) // s + 1 for e, span, s in zip(x.shape[2:], spans, strides)]
    found = np.zeros((x.shape[0], w.shape[0], *places))
    each, made = x.shape[1] // groups, w.shape[0] // groups
    for at in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(k * d, k * d + s * (p - 1) + 1, s) for k, d, s, p in zip(at, dilation, strides, places)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *window)]
            factor = w[(slice(g * made, (g + 1) * made), slice(None), *at)]
            found[:, g * made : (g + 1) * made] += np.einsum("nc...,oc->no...", part, factor)
    result = np.moveaxis(found, 1, -1) if last else found
    assert result.shape == tuple(out.shape)
    out.copyfrom(np.ascontiguousarray(result).astype(out.numpy().dtype))


tvm.register_global_func(NAME, convolution, override=True)
