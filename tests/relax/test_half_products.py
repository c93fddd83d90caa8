# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of half types on a CPU: added up in float32, rounded once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.recorder import Recorder
from tvm_stitch.relax import pipeline

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})


def draw(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(HALF[dtype])


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """The result, of a model whose compute-intensive operators all have a template."""
    recorder = Recorder()
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET, None, recorder))
    assert recorder.computed and all(how.startswith("our template") for how in recorder.computed.values())
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(result: np.ndarray, wide: np.ndarray, bound: np.ndarray, dtype: str) -> None:
    """Within the rounding of a sum in float32, and of its result to ``dtype``."""
    assert result.shape == wide.shape and str(result.dtype) == dtype
    rounding = EPSILON.get(dtype, 0.0)
    assert (np.abs(result.astype("float64") - wide) <= 1e-6 * bound + rounding * np.abs(wide) + 1e-7).all()


@pytest.mark.parametrize("result", ["half", "float32"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (1, 64, 33), (7, 5, 3), (8, 256, 32), (70, 31, 100), (129, 3, 57), (3, 2100, 4)],
)
@pytest.mark.parametrize("stored", ["constant", "plain", "transposed", "left transposed"])
def test_products(m: int, k: int, n: int, stored: str, dtype: str, result: str) -> None:
    x, w = draw(dtype, m, k), draw(dtype, k, n)
    out = "float32" if result == "float32" else dtype

    def product(x: Any, w: Any) -> Any:
        return R.matmul(x, w, out_dtype="float32") if result == "float32" else R.matmul(x, w)

    if stored == "constant":
        mod, arrays = build(lambda emit, x: [product(x, relax.const(w, dtype))], (x.shape, dtype)), [x]
    elif stored == "plain":
        mod, arrays = build(lambda emit, x, w: [product(x, w)], (x.shape, dtype), (w.shape, dtype)), [x, w]
    elif stored == "transposed":
        mod = build(
            lambda emit, x, w: [product(x, emit(R.permute_dims(w)))], (x.shape, dtype), ((n, k), dtype)
        )
        arrays = [x, np.ascontiguousarray(w.T)]
    else:
        mod = build(
            lambda emit, x, w: [product(emit(R.permute_dims(x)), w)], ((k, m), dtype), (w.shape, dtype)
        )
        arrays = [np.ascontiguousarray(x.T), w]
    wide, bound = x.astype("float64") @ w.astype("float64"), np.abs(x.astype("float64")) @ np.abs(w)
    check(run(mod, *arrays), wide, bound, out)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("size", [0, 1, 5, 70])
def test_symbolic_extents(size: int, dtype: str) -> None:
    n, k = symbol("n"), symbol("k")
    mod = build(lambda emit, x, w: [R.matmul(x, w)], ((n, k), dtype), ((k, 20), dtype))
    for depth in (1, 300):
        x, w = draw(dtype, size, depth), draw(dtype, depth, 20)
        wide = x.astype("float64") @ w.astype("float64")
        check(run(mod, x, w), wide, np.abs(x.astype("float64")) @ np.abs(w), dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_many_small_terms_are_not_lost(dtype: str) -> None:
    """A sum of ones in float16 ends at 2048, in bfloat16 at 256."""
    x, w = np.ones((3, 4096), HALF[dtype]), np.ones((4096, 5), HALF[dtype])
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w, dtype))], (x.shape, dtype))
    assert (run(mod, x).astype("float64") == 4096).all()


@pytest.mark.parametrize("dtype", HALF)
def test_what_follows_sees_the_rounded_result(dtype: str) -> None:
    """As if the product were in memory: a bias that cancels all of it but the rounding."""
    x, w = draw(dtype, 9, 32), draw(dtype, 32, 40)
    exact = (x.astype("float64") @ w.astype("float64")).astype("float32")
    bias = exact.astype(HALF[dtype])

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.matmul(x, relax.const(w, dtype)))
        return [R.nn.relu(emit(R.subtract(y, relax.const(bias, dtype))))]

    result = run(build(body, (x.shape, dtype)), x)
    assert str(result.dtype) == dtype
    step = EPSILON[dtype] * 2 * np.abs(exact)  # where the float32 sum is next to a tie, its neighbour
    assert ((result == 0) | (result.astype("float64") <= step)).all() and (result == 0).mean() > 0.95


CONVOLUTIONS = [
    ((2, 7, 9, 5), (6, 3, 3, 5), {"padding": 1}),
    ((1, 8, 8, 16), (32, 1, 1, 16), {}),
    ((1, 9, 9, 8), (8, 3, 3, 1), {"padding": 1, "groups": 8, "strides": 2}),
    ((2, 8, 6, 8), (12, 3, 3, 4), {"groups": 2, "dilation": 2, "padding": 2}),
]


@pytest.mark.parametrize("result", ["half", "float32"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("data", "weight", "attrs"), CONVOLUTIONS)
def test_convolutions(data: Any, weight: Any, attrs: dict[str, Any], dtype: str, result: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = draw(dtype, *data), draw(dtype, *weight)
    out = "float32" if result == "float32" else dtype
    asked = {"out_dtype": "float32"} if result == "float32" else {}

    def body(emit: Any, x: Any) -> list[Any]:
        kernel = relax.const(w, dtype)
        return [R.nn.conv2d(x, kernel, data_layout="NHWC", kernel_layout="OHWI", **attrs, **asked)]

    options = {"stride" if name == "strides" else name: value for name, value in attrs.items()}

    def wide(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        tensors = (torch.from_numpy(a.astype("float64").transpose(0, 3, 1, 2)) for a in (x, w))
        return torch.nn.functional.conv2d(*tensors, **options).numpy().transpose(0, 2, 3, 1)

    check(run(build(body, (x.shape, dtype)), x), wide(x, w), wide(np.abs(x), np.abs(w)), out)


@pytest.mark.parametrize("dtype", HALF)
def test_a_chain_in_the_layout_of_importers(dtype: str) -> None:
    """Convolutions channels first, with a border, a bias and ReLU between them: no kernel besides."""
    torch = pytest.importorskip("torch")
    x, w, v = draw(dtype, 1, 3, 12, 12), draw(dtype, 8, 3, 3, 3), draw(dtype, 4, 8, 3, 3)
    bias = draw(dtype, 1, 8, 1, 1)

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, relax.const(w, dtype), padding=1))
        y = emit(R.nn.relu(emit(R.add(y, relax.const(bias, dtype)))))
        return [R.nn.conv2d(y, relax.const(v, dtype), strides=2)]

    def as_torch(a: np.ndarray) -> Any:
        return torch.from_numpy(a.astype("float64"))

    y = torch.relu(torch.nn.functional.conv2d(as_torch(x), as_torch(w), padding=1) + as_torch(bias))
    wide = torch.nn.functional.conv2d(y, as_torch(v), stride=2).numpy()
    result = run(build(body, (x.shape, dtype)), x)
    assert np.abs(result.astype("float64") - wide).max() <= 8 * EPSILON[dtype] * np.abs(wide).max()
