# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of half types on a CPU: added up in float32, rounded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.compute.cpu.dot_instruction import dot_instruction
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.target import this_cpu

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
WITHOUT = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
WITH = tvm.target.Target(this_cpu())
"""Multiplies groups of elements, where this machine's CPU has an instruction for it."""


@dataclass(frozen=True)
class Kind:
    """A type of the factors, and the CPU that multiplies them."""

    dtype: str
    target: tvm.target.Target

    @property
    def is_grouped(self) -> bool:
        return self.target is WITH


KINDS = [Kind("float16", WITHOUT), Kind("bfloat16", WITHOUT), Kind("bfloat16", WITH)]


@pytest.fixture(params=KINDS, ids=["float16", "bfloat16", "bfloat16-groups"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    if found.is_grouped and dot_instruction(WITH, ("bfloat16", "bfloat16"), 16) is None:
        pytest.skip("this CPU has no instruction for it")
    return found


def draw(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(HALF[dtype])


def run(kind: Kind, mod: tvm.IRModule, *arrays: np.ndarray, grouped: bool = False) -> np.ndarray:
    """Return the result of a model whose compute-intensive operators all have a template.

    ``grouped`` says whether all multiply groups of elements, on a CPU that does.
    """
    recorder = Recorder()
    executable = tvm.compile(mod, kind.target, relax_pipeline=pipeline(kind.target, None, recorder))
    assert recorder.computed and all(how.startswith("our template") for how in recorder.computed.values())
    told = ["2 products of bfloat16 an instruction" in how for how in recorder.computed.values()]
    assert set(told) == {grouped and kind.is_grouped}
    vm = relax.VirtualMachine(executable, tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays]).numpy()


def check(result: np.ndarray, wide: np.ndarray, bound: np.ndarray, dtype: str) -> None:
    """Within the rounding of a sum in float32, and of its result to ``dtype``."""
    assert result.shape == wide.shape and str(result.dtype) == dtype
    rounding = EPSILON.get(dtype, 0.0)
    assert (np.abs(result.astype("float64") - wide) <= 1e-6 * bound + rounding * np.abs(wide) + 1e-7).all()


@pytest.mark.parametrize("result", ["half", "float32"])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(1, 1, 1), (1, 64, 33), (7, 5, 3), (8, 256, 32), (70, 31, 100), (129, 3, 57), (3, 2100, 4)],
)
@pytest.mark.parametrize("stored", ["constant", "plain", "transposed", "left transposed"])
def test_products(m: int, k: int, n: int, stored: str, kind: Kind, result: str) -> None:
    dtype = kind.dtype
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
    grouped = stored in ("constant", "transposed") or m >= 32  # each task packs the right side
    check(run(kind, mod, *arrays, grouped=grouped), wide, bound, out)


@pytest.mark.parametrize("size", [0, 1, 5, 70])
def test_symbolic_extents(size: int, kind: Kind) -> None:
    dtype = kind.dtype
    n, k = symbol("n"), symbol("k")
    mod = build(lambda emit, x, w: [R.matmul(x, w)], ((n, k), dtype), ((k, 20), dtype))
    for depth in (1, 300):
        x, w = draw(dtype, size, depth), draw(dtype, depth, 20)
        wide = x.astype("float64") @ w.astype("float64")
        check(run(kind, mod, x, w), wide, np.abs(x.astype("float64")) @ np.abs(w), dtype)


def test_many_small_terms_are_not_lost(kind: Kind) -> None:
    """A sum of ones in float16 ends at 2048, in bfloat16 at 256."""
    dtype = kind.dtype
    x, w = np.ones((3, 4096), HALF[dtype]), np.ones((4096, 5), HALF[dtype])
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w, dtype))], (x.shape, dtype))
    assert (run(kind, mod, x, grouped=True).astype("float64") == 4096).all()


def test_what_follows_sees_the_rounded_result(kind: Kind) -> None:
    """As if the product were in memory: a bias that cancels all of it but the rounding."""
    dtype = kind.dtype
    x, w = draw(dtype, 9, 32), draw(dtype, 32, 40)
    exact = (x.astype("float64") @ w.astype("float64")).astype("float32")
    bias = exact.astype(HALF[dtype])

    def body(emit: Any, x: Any) -> list[Any]:
        y = emit(R.matmul(x, relax.const(w, dtype)))
        return [R.nn.relu(emit(R.subtract(y, relax.const(bias, dtype))))]

    result = run(kind, build(body, (x.shape, dtype)), x, grouped=True)
    assert str(result.dtype) == dtype
    step = EPSILON[dtype] * 2 * np.abs(exact)  # where the float32 sum is next to a tie, its neighbour
    assert ((result == 0) | (result.astype("float64") <= step)).all() and (result == 0).mean() > 0.95


def test_transposed_convolutions(kind: Kind) -> None:
    """Their phases have depths of their own. Five channels are filled up to six."""
    torch = pytest.importorskip("torch")
    dtype = kind.dtype
    x, w = draw(dtype, 2, 5, 6, 7), draw(dtype, 5, 17, 3, 4)

    def body(emit: Any, x: Any) -> list[Any]:
        return [R.nn.conv2d_transpose(x, relax.const(w, dtype), strides=2, padding=1)]

    def wide(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        tensors = (torch.from_numpy(a.astype("float64")) for a in (x, w))
        return torch.nn.functional.conv_transpose2d(*tensors, stride=2, padding=1).numpy()

    found = run(kind, build(body, (x.shape, dtype)), x, grouped=True)
    check(found, wide(x, w), wide(np.abs(x), np.abs(w)), dtype)


CONVOLUTIONS = [
    ((2, 7, 9, 5), (6, 3, 3, 5), {"padding": 1}),
    ((1, 8, 8, 16), (32, 1, 1, 16), {}),
    ((1, 9, 9, 8), (8, 3, 3, 1), {"padding": 1, "groups": 8, "strides": 2}),
    ((2, 8, 6, 8), (12, 3, 3, 4), {"groups": 2, "dilation": 2, "padding": 2}),
    ((2, 5, 5, 9), (33, 1, 1, 9), {}),
    ((1, 5, 6, 131), (20, 5, 5, 131), {"padding": 2}),
    ((1, 6, 7, 5), (3, 3, 2, 5), {"dilation": (1, 2), "strides": (2, 1)}),
]


@pytest.mark.parametrize("result", ["half", "float32"])
@pytest.mark.parametrize(("data", "weight", "attrs"), CONVOLUTIONS)
def test_convolutions(data: Any, weight: Any, attrs: dict[str, Any], kind: Kind, result: str) -> None:
    dtype = kind.dtype
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

    mixes = w.shape[-1] > 1
    result_of = run(kind, build(body, (x.shape, dtype)), x, grouped=mixes)
    check(result_of, wide(x, w), wide(np.abs(x), np.abs(w)), out)


def test_a_chain_in_the_layout_of_importers(kind: Kind) -> None:
    """Convolutions channels first, with a border, a bias and ReLU between them: no kernel besides."""
    dtype = kind.dtype
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
    result = run(kind, build(body, (x.shape, dtype)), x, grouped=True)
    assert np.abs(result.astype("float64") - wide).max() <= 8 * EPSILON[dtype] * np.abs(wide).max()
