# SPDX-License-Identifier: Apache-2.0
"""Random networks in mixed precision of a half type, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.relax.precision.test_half import EPSILON, HALF, Emit, run
from tvm_stitch.relax import in_half_precision

WIDTH = 8


class Network:
    """Random layers of values of 6 x 8, built and computed in float64 by NumPy at once."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), HALF[dtype]
        self.array = self.rng.standard_normal((6, WIDTH)).astype(self.dtype)
        self.values: list[tuple[Any, np.ndarray]] = []

    def _weight(self) -> tuple[Any, np.ndarray]:
        array = self.rng.uniform(-0.4, 0.4, (WIDTH, WIDTH)).astype(self.dtype)
        return relax.const(array.astype("float32")), array.astype("float64")

    def _pick(self) -> tuple[Any, np.ndarray]:
        return self.values[int(self.rng.integers(max(0, len(self.values) - 4), len(self.values)))]

    def body(self, emit: Emit, x: Any) -> list[Any]:
        self.values = [(x, self.array.astype("float64"))]
        for _ in range(12):
            value, array = self._pick()
            kind = str(
                self.rng.choice(
                    ["matmul", "add", "relu", "softmax", "norm", "views", "parts", "clip", "scale"]
                )
            )
            if kind == "matmul" or len(self.values) == 1:
                weight, numbers = self._weight()
                made, result = emit(R.matmul(value, weight)), array @ numbers
            elif kind == "add":
                other, there = self._pick()
                made, result = emit(R.add(value, other)), array + there
            elif kind == "relu":
                made, result = emit(R.nn.relu(value)), np.maximum(array, 0)
            elif kind == "softmax":
                spread = np.exp(array - array.max(-1, keepdims=True))
                made, result = emit(R.nn.softmax(value)), spread / spread.sum(-1, keepdims=True)
            elif kind == "norm":
                ones, zeros = (relax.const(f((WIDTH,), "float32")) for f in (np.ones, np.zeros))
                made = emit(R.nn.layer_norm(value, ones, zeros, axes=-1, epsilon=0.5))
                centred = array - array.mean(-1, keepdims=True)
                result = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 0.5)
            elif kind == "views":
                made = emit(R.permute_dims(emit(R.reshape(value, (3, 2, WIDTH))), [1, 0, 2]))
                made = emit(R.reshape(made, (6, WIDTH)))
                result = array.reshape(3, 2, WIDTH).transpose(1, 0, 2).reshape(6, WIDTH)
            elif kind == "parts":
                parts = emit(R.split(value, 2, axis=1))
                fields = [emit(relax.TupleGetItem(parts, i)) for i in (1, 0)]
                made, result = emit(R.concat(fields, axis=1)), np.roll(array, WIDTH // 2, 1)
            elif kind == "clip":
                made, result = emit(R.clip(value, -0.7, 1.25)), np.clip(array, -0.7, 1.25)
            else:
                number = float(self.rng.choice([0.5, 0.3, 2.0]))
                made, result = emit(R.multiply(value, relax.const(number))), array * number
            self.values.append((made, result))
        return [made for made, _ in self.values[-2:]]


@pytest.mark.parametrize("seed", range(10))
def test_random_networks(seed: int) -> None:
    """Results are those of float64 to a few roundings of the half type."""
    dtype, products = list(HALF)[seed % 2], ["float32", "half"][seed // 2 % 2]
    network = Network(seed, dtype)
    mod = build(network.body, (network.array.shape, "float32"))
    found = run(in_half_precision(mod, dtype, products), network.array)
    largest = max(np.abs(array).max() for _, array in network.values)
    for each, (_, expected) in zip(found, network.values[-2:], strict=True):
        assert each.dtype == "float32"
        np.testing.assert_allclose(each, expected, rtol=0, atol=32 * EPSILON[dtype] * max(largest, 1.0))
