# SPDX-License-Identifier: Apache-2.0
"""Products of few rows in awkward places: other layouts, several readers, chains, extents of 1, infinities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.graph.helpers import emulated, on_llvm

Made = relax.Expr | Sequence[relax.Expr]
Inputs = list[tuple[tuple[int, ...], str]]
Body = Callable[..., Made]


def built(inputs: Inputs, body: Body) -> tvm.IRModule:
    """Return a module of a function of a builder and of its inputs."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            made = body(builder.emit, *params)
            result = builder.emit_output(made if isinstance(made, relax.Expr) else relax.Tuple(list(made)))
        builder.emit_func_output(result)
    return builder.get()


def linear(emit: Any, x: Any, w: Any) -> Any:
    return emit(op.matmul(x, emit(op.permute_dims(w))))


def scaled(emit: Any, w: Any, s: Any) -> Any:
    return emit(op.multiply(op.astype(w, "float32"), s))


def part(emit: Any, y: Any, begin: int, end: int) -> Any:
    return emit(op.strided_slice(y, [1], [begin], [end]))


def _two(emit: Any, y: Any) -> Any:
    return y, part(emit, y, 0, 10), part(emit, y, 10, 20)


F, BYTE = "float32", "int8"
ROW, WEIGHT, SCALE = ((1, 24), F), ((20, 24), BYTE), ((20, 1), F)
DENSE = ((20, 24), F)
CASES: dict[str, tuple[Inputs, Body]] = {
    "columns innermost": (
        [((3, 24), F), ((24, 20), BYTE), ((1, 20), F)],
        lambda e, x, w, s: op.nn.relu(e(op.matmul(x, scaled(e, w, s)))),
    ),
    "a weight that is read twice": (
        [((2, 24), F), WEIGHT, SCALE],
        lambda e, x, w, s: (lambda d: (linear(e, x, d), e(op.sum(d))))(scaled(e, w, s)),
    ),
    "one column": ([ROW, ((1, 24), F)], linear),
    "one element to add": ([((1, 1), F), ((20, 1), F)], linear),
    "a vector": ([((24,), F), DENSE], linear),
    "rows of a batch": ([((2, 1, 24), F), WEIGHT, SCALE], lambda e, x, w, s: linear(e, x, scaled(e, w, s))),
    "a softmax over its columns": ([ROW, DENSE], lambda e, x, w: e(op.nn.softmax(linear(e, x, w)))),
    "a sum over its rows": (
        [ROW, DENSE],
        lambda e, x, w: e(op.sum(linear(e, x, w), axis=[0], keepdims=True)),
    ),
    "the weight on the left": (
        [WEIGHT, SCALE, ((24, 1), F)],
        lambda e, w, s, x: e(op.matmul(scaled(e, w, s), x)),
    ),
    "a chain": (
        [((4, 24), F), ((24, 24), BYTE), ((24, 1), F), ((24, 24), BYTE)],
        lambda e, x, w, s, v: linear(e, e(op.tanh(linear(e, x, scaled(e, w, s)))), scaled(e, v, s)),
    ),
    "slices that overlap": (
        [ROW, DENSE],
        lambda e, x, w: (lambda y: op.add(part(e, y, 0, 10), part(e, y, 5, 15)))(linear(e, x, w)),
    ),
    "slices and the whole": ([ROW, DENSE], lambda e, x, w: _two(e, linear(e, x, w))),
    "two products of a norm": (
        [ROW, ((24,), F), DENSE, ((36, 24), F)],
        lambda e, x, g, w, v: (lambda h: (linear(e, h, w), linear(e, h, v)))(
            e(op.nn.rms_norm(x, g, axes=[-1]))
        ),
    ),
    "an infinite element": ([ROW, DENSE], linear),
}


@pytest.mark.parametrize("way", [emulated, on_llvm], ids=["cuda", "llvm"])
@pytest.mark.parametrize("name", CASES)
def test_a_product_in_an_awkward_place(name: str, way: Callable[..., list[np.ndarray]]) -> None:
    inputs, body = CASES[name]
    mod, rng = built(inputs, body), np.random.default_rng(0)
    arrays = [
        (rng.integers(-9, 10, shape) if dtype == BYTE else rng.standard_normal(shape)).astype(dtype)
        for shape, dtype in inputs
    ]
    if name == "an infinite element":
        arrays[0][0, 3] = np.inf
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    made = machine["main"](*map(tvm.runtime.tensor, arrays))
    wanted = [made.numpy()] if isinstance(made, tvm.runtime.Tensor) else [each.numpy() for each in made]
    for found, right in zip(way(mod, *arrays), wanted, strict=True):
        most = np.abs(right[np.isfinite(right)]).max(initial=1)
        np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * most)
