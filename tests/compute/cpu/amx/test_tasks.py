# SPDX-License-Identifier: Apache-2.0
"""Products by emulated AMX against float64: every tail of rows, columns and the reduction, and epilogues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.compute.cpu.amx.emulation import Emulation
from tests.graph.helpers import build, symbol
from tvm_stitch.relax import pipeline
from tvm_stitch.target import llvm_version, resolve_target

pytestmark = pytest.mark.skipif(llvm_version() < 17, reason="LLVM has no type for bfloat16")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    return Emulation(tmp_path_factory.mktemp("amx"))


@pytest.fixture
def amx(library: Emulation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulation]:
    library.use(monkeypatch)
    before = library.products
    yield library
    assert library.faults == 0 and library.products > before


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    low, high = (-128, 127) if dtype == "int8" else (0, 255)
    return rng.integers(low, high + 1, shape).astype(dtype)


def runner(mod: tvm.IRModule) -> Callable[..., np.ndarray]:
    target = resolve_target("native")
    machine = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline(target)), tvm.cpu())
    return lambda *inputs: machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def check(found: np.ndarray, wanted: np.ndarray, terms: np.ndarray | None = None) -> None:
    """Compare a result of bfloat16 with one of float64: half a unit of the result, and errors of float32 sums."""
    allowed = 2.0**-8 * np.abs(wanted) + (0 if terms is None else 2.0**-18 * terms) + 1e-6
    assert found.shape == wanted.shape
    assert np.all(np.abs(found.astype("float64") - wanted) <= allowed)


def product(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a product in float64, and the sums of its terms' absolute values."""
    a, b = x.astype("float64"), w.astype("float64")
    return a @ b, np.abs(a) @ np.abs(b)


SHAPES = [
    (4, 32, 16), (5, 3, 2), (7, 31, 7), (16, 64, 32), (17, 33, 33), (20, 100, 47), (31, 64, 70), (32, 160, 64),
    (33, 5, 130), (40, 32, 17), (67, 96, 65), (197, 64, 96), (150, 2, 12),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_products_of_bfloat16(amx: Emulation, rows: int, depth: int, columns: int) -> None:
    w = numbers("bfloat16", depth, columns, seed=1)
    run = runner(build(lambda emit, x: [R.matmul(x, relax.const(w))], ((rows, depth), "bfloat16")))
    x = numbers("bfloat16", rows, depth)
    check(run(x), *product(x, w))


def test_symbolic_rows(amx: Emulation) -> None:
    w = numbers("bfloat16", 40, 50, seed=1)
    mod = build(lambda emit, x: [R.matmul(x, relax.const(w))], ((2, symbol(), 40), "bfloat16"))
    run = runner(mod)
    for rows in (0, 1, 2, 8, 15, 16, 17, 31, 32, 33, 70, 97):
        x = numbers("bfloat16", 2, rows, 40, seed=rows)
        check(run(x), *product(x, w))


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(37, 70, 45), (16, 128, 32), (9, 5, 3)])
def test_products_of_bytes(
    amx: Emulation, left: str, right: str, rows: int, depth: int, columns: int
) -> None:
    w = numbers(right, depth, columns, seed=1)
    body = lambda emit, x: [R.matmul(x, relax.const(w), out_dtype="int32")]  # noqa: E731
    x = numbers(left, rows, depth)
    found = runner(build(body, ((rows, depth), left)))(x)
    np.testing.assert_array_equal(found, x.astype("int64") @ w.astype("int64"))


@pytest.mark.parametrize(("rows", "columns"), [(20, 40), (33, 64), (130, 100)])
@pytest.mark.parametrize("kind", ["light", "heavy", "residual", "softmax"])
def test_epilogues(amx: Emulation, kind: str, rows: int, columns: int) -> None:
    w, bias = numbers("bfloat16", 64, columns, seed=1), numbers("bfloat16", columns, seed=2)

    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        z = emit(R.add(emit(R.matmul(x, relax.const(w))), relax.const(bias)))
        last = {
            "light": R.nn.relu,
            "heavy": R.nn.silu,
            "softmax": R.nn.softmax,
            "residual": lambda z: R.add(z, y),
        }
        return [emit(last[kind](z))]

    x, y = numbers("bfloat16", rows, 64), numbers("bfloat16", rows, columns, seed=3)
    x = x * np.asarray(0.125 if kind == "softmax" else 1, x.dtype)
    found = runner(build(body, (x.shape, "bfloat16"), (y.shape, "bfloat16")))(x, y).astype("float64")
    z = product(x, w)[0] + bias.astype("float64")
    exp = np.exp(z - z.max(-1, keepdims=True))
    wanted = {
        "light": np.maximum(z, 0), "heavy": z / (1 + np.exp(-z)), "softmax": exp / exp.sum(-1, keepdims=True),
        "residual": z + y.astype("float64"),
    }[kind]  # fmt: skip
    assert np.max(np.abs(found - wanted)) <= 2.0**-7 * max(1, np.max(np.abs(z)))


def test_a_transposed_left_side_and_a_batch(amx: Emulation) -> None:
    w = numbers("bfloat16", 48, 40, seed=1)

    def body(emit: Any, x: Any) -> list[Any]:
        return [emit(R.matmul(emit(R.permute_dims(x, [0, 2, 1])), relax.const(w)))]

    x = numbers("bfloat16", 3, 48, 21)
    check(runner(build(body, (x.shape, "bfloat16")))(x), *product(x.transpose(0, 2, 1), w))


def test_a_transposed_weight(amx: Emulation) -> None:
    w = numbers("bfloat16", 40, 48, seed=1)

    def body(emit: Any, x: Any) -> list[Any]:
        return [emit(R.matmul(x, emit(R.permute_dims(relax.const(w)))))]

    x = numbers("bfloat16", 19, 48)
    check(runner(build(body, (x.shape, "bfloat16")))(x), *product(x, w.T))


def test_two_instructions_in_a_module(amx: Emulation) -> None:
    a, b = numbers("bfloat16", 32, 33, seed=1), numbers("int8", 64, 33, seed=2)

    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        bytes_ = emit(R.astype(emit(R.matmul(y, relax.const(b), out_dtype="int32")), "float32"))
        return [emit(R.add(emit(R.astype(emit(R.matmul(x, relax.const(a))), "float32")), bytes_))]

    x, y = numbers("bfloat16", 18, 32), numbers("uint8", 18, 64)
    found = runner(build(body, (x.shape, "bfloat16"), (y.shape, "uint8")))(x, y)
    wanted, terms = product(x, a)
    exact = y.astype("int64") @ b.astype("int64")
    assert np.all(np.abs(found - wanted - exact) <= 2.0**-8 * terms + 2.0**-23 * np.abs(exact))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("batch", "rows", "depth", "columns"),
    [(1, 20, 32, 24), (3, 16, 33, 70), (2, 45, 6, 33), (2, 33, 64, 2), (4, 128, 64, 100), (2, 19, 3, 40)],
)
def test_right_sides_that_tasks_pack(
    amx: Emulation, transposed: bool, batch: int, rows: int, depth: int, columns: int
) -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        return [emit(R.matmul(x, emit(R.permute_dims(y, [0, 2, 1])) if transposed else y))]

    x, y = numbers("bfloat16", batch, rows, depth), numbers("bfloat16", batch, depth, columns, seed=1)
    given = np.ascontiguousarray(y.transpose(0, 2, 1)) if transposed else y
    found = runner(build(body, (x.shape, "bfloat16"), (given.shape, "bfloat16")))(x, given)
    check(found, *product(x, y))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("depth", [64, 70])
def test_right_sides_of_bytes_that_tasks_pack(amx: Emulation, transposed: bool, depth: int) -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        return [emit(R.matmul(x, emit(R.permute_dims(y)) if transposed else y, out_dtype="int32"))]

    x, y = numbers("uint8", 37, depth), numbers("int8", depth, 45, seed=1)
    given = np.ascontiguousarray(y.T) if transposed else y
    found = runner(build(body, (x.shape, "uint8"), (given.shape, "int8")))(x, given)
    np.testing.assert_array_equal(found, x.astype("int64") @ y.astype("int64"))


def test_few_rows_are_computed_without(library: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    library.use(monkeypatch)
    before = library.products
    mod = build(lambda emit, x, y: [R.matmul(x, y)], ((8, 32), "bfloat16"), ((32, 24), "bfloat16"))
    x, y = numbers("bfloat16", 8, 32), numbers("bfloat16", 32, 24, seed=1)
    check(runner(mod)(x, y), *product(x, y))
    assert library.products == before


def test_refused_registers_are_an_error(library: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    library.use(monkeypatch)
    w = numbers("bfloat16", 32, 32)
    run = runner(build(lambda emit, x: [R.matmul(x, relax.const(w))], ((20, 32), "bfloat16")))
    library.refuse(True)
    try:
        with pytest.raises(RuntimeError, match="tile registers of AMX.*-mattr=-amx-tile"):
            run(numbers("bfloat16", 20, 32))
    finally:
        library.refuse(False)
    check(run(numbers("bfloat16", 20, 32)), *product(numbers("bfloat16", 20, 32), w))
