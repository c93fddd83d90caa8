# SPDX-License-Identifier: Apache-2.0
"""Random graphs of element-wise operators, concatenations and transpositions give what they gave, with fewer bytes
transposed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.relax.layout.permutation_runs import permutes, propagated, run


# -- random graphs -----------------------------------------------------------------------------------------------------
class Graph:
    """Random element-wise operators, concatenations and transpositions, built and computed by NumPy at once."""

    UNARY = {"negative": np.negative, "abs": np.abs, "nn.relu": lambda x: np.maximum(x, x.dtype.type(0))}
    BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum}

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rank = int(self.rng.integers(2, 6))
        if seed % 3:
            self.extents = self.rng.integers(2, 6, rank).tolist()
        else:  # many axes that may be exchanged
            self.extents = [2 + int(self.rng.integers(2))] * rank
        self.builder = relax.BlockBuilder()
        self.arrays = [self._draw(self.extents) for _ in range(3)]
        self.arrays.append(self._draw([1 if self.rng.random() < 0.6 else e for e in self.extents]))
        self.params = [
            relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(self.arrays)
        ]
        self.values: list[tuple[Any, np.ndarray]] = list(zip(self.params, self.arrays))

    def _draw(self, shape: Any) -> np.ndarray:
        """Small integers: sums and products of these are exact in any order of operators."""
        return self.rng.integers(-2, 3, tuple(shape)).astype("float32")

    def _pick(self) -> tuple[Any, np.ndarray]:
        recent = self.values[-6:] if self.rng.random() < 0.7 else self.values
        return recent[int(self.rng.integers(len(recent)))]

    def _like(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, np.ndarray]:
        """Return an operand for one of some shape: a constant, a scalar, or a value transposed until it fits."""
        for value, array in (self._pick() for _ in range(8)):
            if array.dtype != dtype or array.size < 2:
                continue
            orders = [self.rng.permutation(array.ndim).tolist() for _ in range(12)]
            for order in [list(range(array.ndim)), *orders]:
                turned = array.transpose(order)
                if all(a in (1, b) for a, b in zip(turned.shape, shape)):
                    if order != list(range(array.ndim)):
                        value = self.builder.emit(R.permute_dims(value, order))
                        self.values.append((value, turned))
                    return value, turned
        own = [1 if self.rng.random() < 0.5 else e for e in shape][int(self.rng.integers(len(shape) + 1)) :]
        array = self._draw(own).astype(dtype)
        return relax.const(array, str(dtype)), array

    def _step(self) -> None:
        value, array = self._pick()
        kind = self.rng.random()
        if kind < 0.35:
            order = self.rng.permutation(array.ndim).tolist()
            made, result = R.permute_dims(value, order), array.transpose(order)
        elif kind < 0.45:
            dtype = "float64" if array.dtype == "float32" else "float32"
            made, result = R.astype(value, dtype), array.astype(dtype)
        elif kind < 0.53 and array.size <= 2000:
            other, there = self._like(array.shape, array.dtype)
            if there.shape != array.shape:
                other, there = value, array
            axis = int(self.rng.integers(array.ndim))
            last = axis - array.ndim if self.rng.random() < 0.5 else axis
            made, result = R.concat((value, other), last), np.concatenate((array, there), axis)
        elif kind < 0.65:
            name = str(self.rng.choice(list(self.UNARY)))
            operator = R.nn.relu if name == "nn.relu" else getattr(R, name)
            made, result = operator(value), self.UNARY[name](array)
        else:
            name = str(self.rng.choice(list(self.BINARY)))
            other, there = self._like(array.shape, array.dtype)
            operands = [(value, array), (other, there)]
            if self.rng.random() < 0.5:
                operands.reverse()
            (a, of_a), (b, of_b) = operands
            made, result = getattr(R, name)(a, b), self.BINARY[name](of_a, of_b)
        if np.abs(result).max() < 2**20:  # exact in float32
            self.values.append((self.builder.emit(made), result))

    def made(self) -> tuple[tvm.IRModule, list[np.ndarray]]:
        with self.builder.function("main", self.params):
            with self.builder.dataflow():
                for _ in range(int(self.rng.integers(5, 25))):
                    self._step()
                chosen = {
                    len(self.values) - 1,
                    *self.rng.integers(len(self.params), len(self.values), 2).tolist(),
                }
                results = [self.values[i] for i in sorted(chosen)]
                outputs = []
                for value, _ in results:
                    if self.rng.random() < 0.3:  # read in its order by what is none of them
                        value = self.builder.emit(R.flip(self.builder.emit(R.flip(value, 0)), 0))
                    outputs.append(self.builder.emit_output(value))
            self.builder.emit_func_output(relax.Tuple(outputs))
        mod = relax.transform.DeadCodeElimination()(self.builder.get())
        return relax.transform.CanonicalizeBindings()(mod), [array for _, array in results]


def bytes_transposed(mod: tvm.IRModule) -> int:
    sizes = {"float32": 4, "float64": 8, "bool": 1}
    return sum(
        sizes[str(call.ty.dtype)] * math.prod(int(extent) for extent in call.ty.shape.values)
        for call in permutes(mod)
    )


SEEDS = 24


def test_random_graphs() -> None:
    """Exactly what NumPy gives, with and without the pass, and never more bytes transposed."""
    fewer = 0
    for seed in range(SEEDS):
        graph = Graph(seed)
        mod, expected = graph.made()
        after = propagated(mod)
        spent, before = bytes_transposed(after), bytes_transposed(mod)
        assert spent <= before, (seed, spent, before)
        fewer += spent < before
        for each in (mod, after):
            for found, array in zip(run(each, *graph.arrays), expected, strict=True):
                np.testing.assert_array_equal(found, array, err_msg=str(seed))
    assert fewer > SEEDS / 4
