# SPDX-License-Identifier: Apache-2.0
"""CPU kernels divide by no extent that is 0: they do nothing where all results are empty, else divide by 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.relax import pipeline

F32 = "float32"


def difference(emit: Any, x: Any, _: Any) -> Any:
    return [R.subtract(x, x)]


def sums(emit: Any, x: Any, _: Any) -> Any:
    """The sum over all but the first extent, and something else of it as one row."""
    flat = emit(R.reshape(emit(R.permute_dims(emit(R.exp(x)), [1, 0, 2])), [-1]))
    return [R.sum(x, [1, 2]), R.tanh(flat)]


def with_extents(body: Callable[..., Any], dtype: str) -> tvm.IRModule:
    n, m = symbol("n"), symbol("m")
    return build(body, ((n // 4, m - 9, 48), dtype), ((n, m), F32))


@pytest.mark.parametrize("sizes", [(9, 9), (3, 9), (3, 12), (16, 9), (33, 10)], ids=str)
@pytest.mark.parametrize(("body", "dtype"), [(difference, "int32"), (sums, F32)], ids=["difference", "sums"])
def test_extents_of_zero(body: Callable[..., Any], dtype: str, sizes: tuple[int, int]) -> None:
    mod, (n, m) = with_extents(body, dtype), sizes
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm")), tvm.cpu())
    x = np.random.default_rng(0).integers(-9, 9, (n // 4, m - 9, 48)).astype(dtype)
    got = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(sizes, F32)))
    outputs = [o.numpy() for o in got] if body is sums else [got.numpy()]
    flat = np.tanh(np.exp(x.astype("float64"))).transpose(1, 0, 2).reshape(-1)
    wanted = [x.sum((1, 2)), flat] if body is sums else [x - x]
    for found, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
