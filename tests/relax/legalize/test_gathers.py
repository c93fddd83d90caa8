# SPDX-License-Identifier: Apache-2.0
"""Gathers by coordinates become one operator with NumPy's results."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.graph.reader import read
from tvm_stitch.relax.legalize.operators import legalize

RNG = np.random.default_rng(7)


def expected(data: np.ndarray, indices: np.ndarray, batch_dims: int) -> np.ndarray:
    if batch_dims:
        return np.stack([expected(d, i, batch_dims - 1) for d, i in zip(data, indices)])
    return data[tuple(np.moveaxis(indices, -1, 0))]


@pytest.mark.parametrize(
    ("shape", "indices", "batch_dims"),
    [
        ((5, 4, 3), (7, 1), 0),
        ((5, 4, 3), (2, 7, 1), 0),
        ((5, 4, 3), (7, 2), 0),
        ((5, 4, 3), (7, 3), 0),
        ((2, 5, 4, 3), (2, 6, 1), 1),
        ((2, 3, 5, 4), (2, 3, 6, 2), 2),
    ],
)
def test_results(shape: tuple[int, ...], indices: tuple[int, ...], batch_dims: int) -> None:
    data = RNG.standard_normal(shape).astype("float32")
    most = shape[batch_dims : batch_dims + indices[-1]]
    at = RNG.integers(0, most, indices)
    mod = build(lambda emit, x, i: R.gather_nd(x, i, batch_dims), (shape, "float32"), (indices, "int64"))
    mod = legalize("Legalize")(mod)
    (func,) = [f for g, f in mod.functions_items() if g.name_hint != "main"]
    assert len(read(func, "gather").operators) == 1
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    result = vm["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(at)).numpy()
    np.testing.assert_array_equal(result, expected(data, at, batch_dims))
