# SPDX-License-Identifier: Apache-2.0
"""Movement along axes whose extent is derived from symbols: no flip or transposition is taken for a reshape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

F32 = "float32"
EXTENTS: dict[str, Callable[[Any, Any], Any]] = {
    "n//16": lambda n, m: n // 16,
    "n//16+1": lambda n, m: n // 16 + 1,
    "n-9": lambda n, m: n - 9,
    "n//2": lambda n, m: n // 2,
    "n*m": lambda n, m: n * m,
    "n+1": lambda n, m: n + 1,
    "n": lambda n, m: n,
}
STRICT = StitchConfig(strict=True)
SIZES = ((100, 3), (37, 5), (16, 2), (9, 1))
"""(n, m), with extents of 0 and 1 among them."""


def moved(extent: Callable[[Any, Any], Any]) -> tvm.IRModule:
    """Flips and transpositions of exp(x), where x is <extent, 6> and y <extent, extent>."""
    n, m = symbol("n"), symbol("m")
    e = extent(n, m)

    def body(emit: Any, _: Any, x: Any, y: Any) -> Any:
        a, b = emit(R.exp(x)), emit(R.exp(y))
        return [
            R.tanh(emit(R.flip(a, 0))),
            R.tanh(emit(R.permute_dims(emit(R.flip(a, 1)), [1, 0]))),
            R.tanh(emit(R.permute_dims(b, [1, 0]))),
        ]

    return build(body, ((n, m), F32), ((e, 6), F32), ((e, e), F32))


def expected(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    a, b = np.exp(x.astype("float64")), np.exp(y.astype("float64"))
    return [np.tanh(v) for v in (a[::-1], a[:, ::-1].T, b.T)]


def draw(extent: Callable[[Any, Any], Any], n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng([n, m])
    e = extent(n, m)
    return [rng.standard_normal(s).astype(F32) for s in ((n, m), (e, 6), (e, e))]


def check(outputs: Sequence[Any], inputs: Sequence[np.ndarray], note: object) -> None:
    for i, (got, wanted) in enumerate(zip(outputs, expected(*inputs[1:]), strict=True)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=f"output {i} at {note}")


def emulated(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    target = emulated_target()
    return list(
        run_cuda(
            mod, list(inputs), target=target, relax_pipeline=pipeline(target, STRICT), tir_pipeline=LOWERING
        )
        .check()
        .outputs
    )


@pytest.mark.parametrize("name", EXTENTS)
def test_movement_along_a_derived_extent_on_llvm(name: str) -> None:
    executable = tvm.compile(moved(EXTENTS[name]), "llvm", relax_pipeline=pipeline("llvm", STRICT))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for size in SIZES:
        inputs = draw(EXTENTS[name], *size)
        check([o.numpy() for o in vm["main"](*map(tvm.runtime.tensor, inputs))], inputs, size)


@pytest.mark.parametrize("name", ["n//16", "n//16+1", "n-9", "n*m"])
def test_movement_along_a_derived_extent_in_the_emulator(name: str) -> None:
    inputs = draw(EXTENTS[name], 37, 2)
    outputs = emulated(moved(EXTENTS[name]), inputs)
    check(outputs, inputs, "(37, 2)")


@pytest.mark.parametrize("height", [16, 37, 161])
def test_a_flip_of_a_pooled_image_of_any_height(height: int) -> None:
    """The extent that pooling derives is n // 16 in disguise."""
    n = symbol("n")

    def body(emit: Any, x: Any) -> Any:
        return R.exp(emit(R.flip(emit(R.nn.max_pool2d(x, (16, 1), (16, 1))), 2)))

    mod = build(body, ((1, 2, n, 3), F32))
    x = np.random.default_rng(height).standard_normal((1, 2, height, 3)).astype(F32)
    whole = x[:, :, : height // 16 * 16].reshape(1, 2, height // 16, 16, 3)
    wanted = np.exp(whole.max(3).astype("float64")[:, :, ::-1])
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm", STRICT))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(emulated(mod, [x])[0], wanted, rtol=1e-5)
