# SPDX-License-Identifier: Apache-2.0
"""The function of cudnn.cc in NumPy: convolutions that CUDA code would do run where there is no GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm

NAME = "tests.cudnn.convolution"


class Window:
    """The numbers of a call: groups, and for each spatial axis strides, padding and dilation."""

    def __init__(self, numbers: Any, rank: int) -> None:
        self.groups, *rest = map(int, numbers)
        self.strides, self.padding, self.dilation = (rest[i * rank : (i + 1) * rank] for i in range(3))

    def padded(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])

    def seen(self, at: tuple[int, ...], places: Any) -> tuple[slice, ...]:
        """Return slices of padded data that the element ``at`` of the windows reads, for all positions."""
        return tuple(
            slice(k * d, k * d + s * (p - 1) + 1, s)
            for k, d, s, p in zip(at, self.dilation, self.strides, places)
        )


def convolution(data: Any, weight: Any, *rest: Any) -> None:
    """``tvm_stitch.cudnn.convolution`` in float64."""
    *more, numbers, mode, out, workspace = rest
    words = str(mode).split()
    assert len({"channels_first", "channels_last"} & set(words)) == 1
    known = {"channels_first", "channels_last", "tf32", "timed", "weight_gradient", "data_gradient"}
    after = [word for word in ("bias", "residual", "relu") if word in words]
    assert set(words) <= known | set(after) and workspace.dtype == "uint8"
    assert len(more) == len({"bias", "residual"} & set(after)) and ("bias" in after or not after)
    if "weight_gradient" in words:
        weight_gradient(data, weight, numbers, out)
        return
    if "data_gradient" in words:
        data_gradient(data, weight, numbers, out)
        return
    last = "channels_last" in words
    x, w = (t.numpy().astype("float64") for t in (data, weight))
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    numbers = Window(numbers, x.ndim - 2)
    x, groups = numbers.padded(x), numbers.groups
    kernel = w.shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(numbers.dilation, kernel)]
    places = [(e - span) // s + 1 for e, span, s in zip(x.shape[2:], spans, numbers.strides)]
    found = np.zeros((x.shape[0], w.shape[0], *places))
    each, made = x.shape[1] // groups, w.shape[0] // groups
    for at in itertools.product(*map(range, kernel)):
        window = numbers.seen(at, places)
        for g in range(groups):
            part = x[(slice(None), slice(g * each, (g + 1) * each), *window)]
            factor = w[(slice(g * made, (g + 1) * made), slice(None), *at)]
            found[:, g * made : (g + 1) * made] += np.einsum("nc...,oc->no...", part, factor)
    result = np.moveaxis(found, 1, -1) if last else found
    assert result.shape == tuple(out.shape) and (last or not after)
    for operand in more:
        assert operand.dtype == out.dtype
        result = result + operand.numpy().astype("float64")
    result = np.maximum(result, 0.0) if "relu" in after else result
    out.copyfrom(np.ascontiguousarray(result).astype(out.numpy().dtype))


def weight_gradient(data: Any, gradient: Any, numbers: Any, out: Any) -> None:
    """Return the gradient of a weight, channels first and in one group, in float64."""
    x, g = (t.numpy().astype("float64") for t in (data, gradient))
    numbers = Window(numbers, x.ndim - 2)
    assert numbers.groups == 1
    x = numbers.padded(x)
    found = np.zeros(tuple(out.shape))
    for at in itertools.product(*map(range, found.shape[2:])):
        window = numbers.seen(at, g.shape[2:])
        seen = x[(slice(None), slice(None), *window)].reshape((*x.shape[:2], -1))
        found[(slice(None), slice(None), *at)] = np.einsum("ncp,nop->oc", seen, g.reshape((*g.shape[:2], -1)))
    out.copyfrom(np.ascontiguousarray(found).astype(out.numpy().dtype))


def data_gradient(gradient: Any, weight: Any, numbers: Any, out: Any) -> None:
    """Return the gradient of the data, channels first, in float64."""
    g, w = (t.numpy().astype("float64") for t in (gradient, weight))
    numbers = Window(numbers, g.ndim - 2)
    padding, groups = numbers.padding, numbers.groups
    images, channels, *extents = tuple(out.shape)
    padded = np.zeros((images, channels, *(e + 2 * p for e, p in zip(extents, padding))))
    each, made = channels // groups, g.shape[1] // groups
    for at in itertools.product(*map(range, w.shape[2:])):
        window = numbers.seen(at, g.shape[2:])
        for group in range(groups):
            of_group = slice(group * each, (group + 1) * each)
            factor = w[(slice(group * made, (group + 1) * made), slice(None), *at)]
            part = g[:, group * made : (group + 1) * made]
            padded[(slice(None), of_group, *window)] += np.einsum("no...,oc->nc...", part, factor)
    inner = tuple(slice(p, p + e) for p, e in zip(padding, extents))
    found = padded[(slice(None), slice(None), *inner)]
    out.copyfrom(np.ascontiguousarray(found).astype(out.numpy().dtype))


tvm.register_global_func(NAME, convolution, override=True)
