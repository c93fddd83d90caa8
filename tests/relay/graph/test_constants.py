# SPDX-License-Identifier: Apache-2.0
"""Relay's scalar constants: numbers in the operators that read them, exact to the last bit in the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relay

from stitch_testing.reference.graph_eval import evaluate_graph
from stitch_testing.validate import validate
from tests.relay.codegen.kernels import check, lower
from tvm_stitch import compat
from tvm_stitch.graph.ir import OpClass, Span, StitchGraph
from tvm_stitch.graph.reader import read

F32 = "float32"


def graph(body: Any, *dtypes: str, shape: tuple[int, ...] = (4, 8)) -> StitchGraph:
    params = [relay.var(f"a{i}", shape=shape, dtype=dtype) for i, dtype in enumerate(dtypes)]
    made = body(*params)
    found = read(lower(relay.Function(params, relay.Tuple(made) if isinstance(made, list) else made)))
    validate(found)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "bool"])
def test_numbers_of_every_dtype(dtype: str) -> None:
    combine = relay.logical_or if dtype == "bool" else relay.add
    number = np.dtype(dtype).type(0.1 if "float" in dtype else 1)
    (op,) = graph(lambda x: combine(x, relay.const(number, dtype)), dtype).operators
    assert [(a.tensor.name, a.span) for a in op.accesses] == [("a0", Span.ALL)]
    assert compat.dtype_of(op.value.b) == dtype and np.dtype(dtype).type(op.value.b.value) == number


def test_classes_and_exponents_are_seen() -> None:
    (divide,) = graph(lambda x: x / relay.const(3.0), F32).operators
    assert divide.op_class is OpClass.LIGHT
    (power,) = graph(lambda x: relay.power(x, relay.const(2.5)), F32).operators
    assert compat.kind(power.value.args[1]) == "FloatImm"


def test_casts_and_broadcasts_of_a_constant_keep_their_rounding() -> None:
    def body(x: Any) -> Any:
        tenth = relay.cast(relay.cast(relay.const(0.1), "float16"), F32)
        return x * relay.broadcast_to(relay.expand_dims(tenth, 0), (1, 1))

    found = graph(body, F32)
    assert len(found.operators) == 1
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(F32)
    np.testing.assert_array_equal(evaluate_graph(found, [x])[0], x * np.float64(np.float16(0.1)))


def test_a_constant_index_is_no_gather() -> None:
    found = graph(lambda x: relay.take(x, relay.const(np.int64(2)), axis=0, mode="fast"), F32)
    (op,) = found.operators
    assert compat.int_value(op.accesses[0].indices[0]) == 2


def test_a_constant_output_stays() -> None:
    found = graph(lambda x: [relay.const(2.0) + relay.const(1.0), relay.exp(x)], F32)
    assert len(found.outputs) == 2 and all(t.producer is not None for t in found.outputs)
    x = np.ones((4, 8), F32)
    assert evaluate_graph(found, [x])[0] == 3.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("small", [1e-9, 3e-20, 1e-36])
def test_small_constants_are_exact_in_kernels(small: float, dtype: str) -> None:
    """TVM takes constants for equal that differ by less than 1e-9."""
    number = np.dtype(dtype).type(small)

    def body(x: Any) -> Any:
        one, other = relay.const(number, dtype), relay.const(number * 2, dtype)
        chosen = relay.where(relay.greater(x, relay.const(0.0, dtype)), one, other)
        return [chosen, relay.maximum(x * one, other), relay.divide(one, x)]

    def reference(x: np.ndarray) -> list[np.ndarray]:
        wide = np.float64(number)
        return [np.where(x > 0, wide, 2 * wide), np.maximum(x * wide, 2 * wide), wide / x]

    close = {dtype: (1e-6 if dtype == F32 else 1e-14, 0.0)}
    kernel = check([(16, 40)], dtype, body, reference, tolerance=close)
    assert len(kernel.graph.operators) == 5


def test_kernels_with_constants() -> None:
    def body(x: Any, y: Any) -> list[Any]:
        shifted = relay.mean(x, 1, keepdims=True) + relay.const(1e-5)
        return [relay.clip(x / relay.const(3.0), -0.25, 0.5) * shifted, relay.cast(y, F32) - relay.const(7.0)]

    def reference(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        shifted = x.mean(1, keepdims=True) + np.float64(np.float32(1e-5))
        return [np.clip(x / 3, -0.25, 0.5) * shifted, y - 7.0]

    kernel = check([(16, 40), (16, 40)], [F32, "int32"], body, reference)
    assert not any(op.name.startswith("compile_engine_const") for op in kernel.graph.operators)
