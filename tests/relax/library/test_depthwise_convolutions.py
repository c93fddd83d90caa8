# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions with channels last are calls of our kernel, and right in the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from cuda_emulator import run_cuda
from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.depthwise_convolutions import DepthwiseConvolutions

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
LAYOUTS = {
    "last": {"data_layout": "NHWC", "kernel_layout": "OHWI"},
    "first": {"data_layout": "NCHW", "kernel_layout": "OIHW"},
}
"""The layouts, by the place of channels."""


def module(
    data: Any, weight: Any, dtype: str = "float32", channels: str = "last", **attrs: Any
) -> tvm.IRModule:
    attrs = {**LAYOUTS[channels], "groups": data[1 if channels == "first" else -1], **attrs}
    return build(lambda emit, x, w: R.nn.conv2d(x, w, **attrs), (data, dtype), (weight, dtype))


def computed(mod: tvm.IRModule, target: Any = CUDA, config: StitchConfig | None = None) -> bool:
    """Return whether our kernel computes the module's convolution."""
    return "depthwise_convolution" in {
        gvar.name_hint for gvar in DepthwiseConvolutions(target, config)(mod).functions
    }


def exact(x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, dilation: Any) -> np.ndarray:
    """Compute the convolution in float64."""
    x, w = x.astype("float64"), w.astype("float64")[..., 0]
    x = np.pad(x, [(0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[1:])]
    out = [(n - r) // s + 1 for n, r, s in zip(x.shape[1:3], reach, strides)]
    total = np.zeros((x.shape[0], *out, x.shape[3]))
    for i in range(w.shape[1]):
        for j in range(w.shape[2]):
            rows = slice(i * dilation[0], i * dilation[0] + (out[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(j * dilation[1], j * dilation[1] + (out[1] - 1) * strides[1] + 1, strides[1])
            total += x[:, rows, columns] * w[:, i, j]
    return total


# Data, window, strides, paddings, dilations. Extents are odd and prime. Some images are narrower than a thread.
CASES = {
    "usual": ((2, 13, 11, 24), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "large window": ((1, 9, 17, 8), (7, 7), (1, 1), (3, 3, 3, 3), (1, 1)),
    "strides": ((2, 14, 15, 12), (5, 3), (2, 2), (2, 1, 2, 1), (1, 1)),
    "strides across": ((1, 7, 23, 4), (1, 11), (1, 3), (0, 5, 0, 5), (1, 1)),
    "down": ((1, 23, 5, 6), (11, 1), (1, 1), (5, 0, 5, 0), (1, 1)),
    "dilation": ((1, 19, 21, 10), (3, 3), (1, 1), (4, 6, 4, 6), (4, 3)),
    "unequal padding": ((1, 8, 9, 16), (3, 2), (2, 2), (0, 0, 1, 1), (1, 1)),
    "odd channels": ((3, 5, 6, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    "one channel": ((1, 6, 6, 1), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    "one position": ((2, 3, 3, 260), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    "many channels": ((1, 2, 3, 576), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
}
DTYPES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.mark.parametrize("channels", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case: str, dtype: str, channels: str) -> None:
    data, window, strides, padding, dilation = CASES[case]
    draw, kind = np.random.default_rng(), np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = [draw.standard_normal(s).astype(kind) for s in (data, (data[3], *window, 1))]
    attrs = {"strides": strides, "padding": padding, "dilation": dilation}
    want = exact(*given, strides, padding, dilation)
    if channels == "first":
        given = [np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in given]
        want = want.transpose(0, 3, 1, 2)
    mod = module(given[0].shape, given[1].shape, dtype, channels, **attrs)
    assert computed(mod)
    run = run_cuda(mod, given, target=CUDA, relax_pipeline=pipeline(CUDA, StitchConfig(strict=True))).check()
    got = run.outputs[0].astype("float64")
    assert np.abs(got - want).max() <= DTYPES[dtype] * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("channels", LAYOUTS)
@pytest.mark.parametrize("images", [0, 1, 3])
def test_symbolic_extents(images: int, channels: str) -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    data = (n, h, w, 12) if channels == "last" else (n, 12, h, w)
    window = (12, 3, 3, 1) if channels == "last" else (12, 1, 3, 3)
    mod = module(data, window, "float16", channels, padding=(1, 1, 1, 1))
    assert computed(mod)
    draw = np.random.default_rng(0)
    x, f = (draw.standard_normal(s).astype("float16") for s in ((images, 6, 5, 12), (12, 3, 3, 1)))
    want, given = exact(x, f, (1, 1), (1, 1, 1, 1), (1, 1)), [x, f]
    if channels == "first":
        want, given = want.transpose(0, 3, 1, 2), [each.transpose(0, 3, 1, 2).copy() for each in given]
    run = run_cuda(mod, given, target=CUDA, relax_pipeline=pipeline(CUDA)).check()
    np.testing.assert_allclose(run.outputs[0].astype("float64"), want, atol=1e-2)


def test_one_axis_with_float32_results() -> None:
    def called(emit: Any, x: Any, w: Any) -> Any:
        attrs = {"padding": (2, 2), "groups": 20, "data_layout": "NWC", "kernel_layout": "OWI"}
        return R.nn.conv1d(x, w, out_dtype="float32", **attrs)

    mod = build(called, ((2, 31, 20), "float16"), ((20, 5, 1), "float16"))
    assert computed(mod)
    draw = np.random.default_rng(1)
    x, f = (draw.standard_normal(s).astype("float16") for s in ((2, 31, 20), (20, 5, 1)))
    run = run_cuda(mod, [x, f], target=CUDA, relax_pipeline=pipeline(CUDA)).check()
    want = exact(x[:, None], f[:, None], (1, 1), (0, 2, 0, 2), (1, 1))[:, 0]
    assert run.outputs[0].dtype == np.float32
    np.testing.assert_allclose(run.outputs[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("data", "weight", "attrs"),
    [
        ((1, 6, 6, 8), (16, 3, 3, 1), {}),  # two filters for each channel
        ((1, 6, 6, 8), (8, 3, 3, 2), {"groups": 4}),
        ((1, 30, 30, 8), (8, 13, 13, 1), {}),  # a gradient's window
    ],
)
def test_others_stay(data: Any, weight: Any, attrs: Any) -> None:
    assert not computed(module(data, weight, "float16", **attrs))


@pytest.mark.parametrize("channels", LAYOUTS)
def test_long_dilated_windows_stay(channels: str) -> None:
    """A thread would run through all elements between those that it reads."""
    last = channels == "last"
    data = (1, 600, 600, 8) if last else (1, 8, 600, 600)
    weight = (8, 3, 3, 1) if last else (8, 1, 3, 3)
    long, short = ((1, 256), (256, 1)) if last else ((256, 1), (1, 256))
    assert not computed(module(data, weight, channels=channels, dilation=long))
    assert computed(module(data, weight, channels=channels, dilation=short))


def test_only_if_templates_may_compute() -> None:
    mod = module((1, 6, 6, 8), (8, 3, 3, 1), "bfloat16")
    assert computed(mod) and not computed(mod, config=StitchConfig(compute="libraries"))
    old = tvm.target.Target({"kind": "cuda", "arch": "sm_75"}, host="llvm")
    assert not computed(mod, old) and computed(module((1, 6, 6, 8), (8, 3, 3, 1), "float16"), old)


def test_the_call() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((1, 6, 6, 8), "float16"), w: RS.Tensor((8, 3, 3, 1), "float16")) -> RS.Tensor(
            (1, 4, 4, 8), "float16"
        ):
            with RS.dataflow():
                y = RS.nn.conv2d(x, w, groups=8, data_layout="NHWC", kernel_layout="OHWI")
                RS.output(y)
            return y

    after = DepthwiseConvolutions(CUDA)(Before)
    (kernel,) = (gvar for gvar in after.functions if gvar.name_hint == "depthwise_convolution")
    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(n, relax.TensorType(s, "float16")) for n, s in (("x", (1, 6, 6, 8)), ("w", (8, 3, 3, 1)))
    )
    with builder.function("main", [x, w]):
        with builder.dataflow():
            lines = builder.emit(R.reshape(w, (8, 9)))
            by_tap = builder.emit(R.permute_dims(lines, [1, 0]))
            out = relax.TensorType([1, 4, 4, 8], "float16")
            y = builder.emit_output(relax.call_tir(kernel, relax.Tuple([x, by_tap]), out))
        builder.emit_func_output(y)
    tvm.ir.assert_structural_equal(after["main"], builder.finalize()["main"], map_free_vars=True)
