# SPDX-License-Identifier: Apache-2.0
"""Kernels with a lane for each row compute every row value once."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, on_llvm
from tvm_stitch.relax import pipeline

TARGET = tvm.target.Target("llvm")


def chain(length: int) -> tvm.IRModule:
    """Return exponentials of exponentials, one for each row, that scale rows of two columns."""

    def body(emit: Any, x: Any, row: Any) -> list[Any]:
        for _ in range(length):
            row = emit(R.exp(emit(R.multiply(row, relax.const(-0.5, "float32")))))
            x = emit(R.multiply(x, emit(R.expand_dims(row, 1))))
        return [x]

    return build(body, ((1024, 2), "float32"), ((1024,), "float32"))


def size(mod: tvm.IRModule) -> int:
    with TARGET:
        made = pipeline(TARGET)(mod)
    return sum(len(func.script()) for func in made.functions.values() if isinstance(func, tvm.tirx.PrimFunc))


def test_code_grows_with_the_number_of_values() -> None:
    """Each value was computed again for every value after it: the code grew with the square."""
    assert size(chain(8)) < 2.5 * size(chain(4))


def test_values_are_right() -> None:
    rng = np.random.default_rng(0)
    x, row = rng.standard_normal((1024, 2)), rng.standard_normal(1024)
    found = on_llvm(chain(5), x.astype("float32"), row.astype("float32"))[0]
    for _ in range(5):
        row = np.exp(-0.5 * row)
        x = x * row[:, None]
    np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-6)
