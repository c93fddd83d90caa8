# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of integers on a CPU: exact, also with instructions that multiply groups of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.target import has_feature, this_cpu

TARGETS = {
    "here": tvm.target.Target(this_cpu()),
    "avx2": tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}),
    "sse2": tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}),
}
CHOICES = list(product(TARGETS, ("uint8", "int8"), ("uint8", "int8")))


@pytest.fixture(params=CHOICES, ids="-".join)
def choice(request: pytest.FixtureRequest) -> tuple[tvm.target.Target, str, str]:
    name, left, right = request.param
    if name == "avx2" and not has_feature(TARGETS["here"], "avx2"):
        pytest.skip("this CPU does not have it")
    return TARGETS[name], left, right


def draw(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(sum(shape)).integers(limits.min, limits.max + 1, shape).astype(dtype)


def run(target: Any, mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """Return the result of a model whose product has a template, if it multiplies anything."""
    recorder = Recorder()
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, None, recorder))
    assert recorder.computed or not all(a.size for a in arrays)
    assert all(how.startswith("our template") for how in recorder.computed.values())
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 64, 33), (7, 5, 3), (70, 31, 100), (129, 3, 57), (3, 2100, 4), (9, 0, 5)]
)
def test_products(choice: tuple[Any, str, str], m: int, k: int, n: int) -> None:
    target, left, right = choice
    x, w = draw(left, m, k), draw(right, k, n)
    mod = build(lambda emit, v: [R.matmul(v, relax.const(w), out_dtype="int32")], ((m, k), left))
    found = run(target, mod, x)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, x.astype("int64") @ w.astype("int64"))


def test_weights_stored_by_columns(choice: tuple[Any, str, str]) -> None:
    target, left, right = choice
    x, w = draw(left, 37, 50), draw(right, 41, 50)
    mod = build(
        lambda emit, v: [R.matmul(v, emit(R.permute_dims(relax.const(w))), out_dtype="int32")],
        ((37, 50), left),
    )
    np.testing.assert_array_equal(run(target, mod, x), x.astype("int64") @ w.astype("int64").T)


def test_right_sides_that_are_no_constants(choice: tuple[Any, str, str]) -> None:
    target, left, right = choice
    x, w = draw(left, 2, 9, 40), draw(right, 2, 40, 35)
    mod = build(lambda emit, a, b: [R.matmul(a, b, out_dtype="int32")], (x.shape, left), (w.shape, right))
    np.testing.assert_array_equal(run(target, mod, x, w), x.astype("int64") @ w.astype("int64"))


def test_symbolic_rows(choice: tuple[Any, str, str]) -> None:
    target, left, right = choice
    w = draw(right, 30, 21)
    mod = build(lambda emit, v: [R.matmul(v, relax.const(w), out_dtype="int32")], ((symbol("n"), 30), left))
    for rows in (0, 1, 7, 100):
        x = draw(left, rows, 30)
        np.testing.assert_array_equal(run(target, mod, x), x.astype("int64") @ w.astype("int64"))


def test_sums_wrap_around() -> None:
    x, w = np.full((2, 40_000), 255, "uint8"), np.full((40_000, 3), 255, "uint8")
    mod = build(lambda emit, v: [R.matmul(v, relax.const(w), out_dtype="int32")], (x.shape, "uint8"))
    for target in TARGETS.values():
        expected = (x.astype("int64") @ w.astype("int64")).astype("int32")
        np.testing.assert_array_equal(run(target, mod, x), expected)


def test_what_follows_is_computed_in_the_kernel(choice: tuple[Any, str, str]) -> None:
    target, left, right = choice
    x, w = draw(left, 33, 48), draw(right, 48, 40)
    scale = np.random.default_rng(1).random(40).astype("float32") / 4000

    def body(emit: Any, v: Any) -> list[Any]:
        whole = emit(R.matmul(v, relax.const(w), out_dtype="int32"))
        real = emit(R.multiply(emit(R.astype(whole, "float32")), relax.const(scale)))
        return [R.quantize(real, relax.const(np.float32(0.5)), relax.const(np.int8(3)), out_dtype="int8")]

    found = run(target, build(body, (x.shape, left)), x)
    wide = (x.astype("int64") @ w.astype("int64")).astype("float32") * scale
    expected = np.clip(np.round(wide / np.float32(0.5)) + 3, -128, 127)
    assert np.abs(found.astype("int64") - expected).max() <= 1 and (found == expected).mean() > 0.99


@pytest.mark.parametrize(
    ("channels", "results", "groups", "stride", "padding"),
    [
        (1, 1, 1, 1, 0),
        (3, 8, 1, 2, 1),
        (8, 12, 2, 1, 1),
        (6, 10, 2, 1, 0),
        (16, 16, 16, 1, 1),
        (64, 70, 1, 1, 1),
    ],
)
def test_convolutions(
    choice: tuple[Any, str, str], channels: int, results: int, groups: int, stride: int, padding: int
) -> None:
    target, left, right = choice
    x, w = draw(left, 2, 11, 13, channels), draw(right, results, 3, 3, channels // groups)
    mod = build(
        lambda emit, v: [
            R.nn.conv2d(
                v,
                relax.const(w),
                strides=stride,
                padding=padding,
                groups=groups,
                data_layout="NHWC",
                kernel_layout="OHWI",
                out_dtype="int32",
            )
        ],
        (x.shape, left),
    )
    expected = torch.nn.functional.conv2d(
        torch.tensor(x.transpose(0, 3, 1, 2).astype("float64")),
        torch.tensor(w.transpose(0, 3, 1, 2).astype("float64")),
        stride=stride,
        padding=padding,
        groups=groups,
    )
    np.testing.assert_array_equal(run(target, mod, x), expected.numpy().transpose(0, 2, 3, 1))
