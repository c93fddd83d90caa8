# SPDX-License-Identifier: Apache-2.0
"""Products of one operand are one product. Weights that are shared, computed or apart stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import build, symbol
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.library.joined_matmuls import JoinedProducts

TARGET = emulated_target()
RNG = np.random.default_rng()


def constant(*shape: int, dtype: str = "float32") -> Any:
    return relax.const(RNG.standard_normal(shape).astype(dtype))


def products(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Return the shapes of the products' weights."""
    values = relax.analysis.get_var2val(mod["main"]).values()
    calls = [v for v in values if isinstance(v, relax.Call) and v.op.name == "relax.matmul"]
    return [tuple(int(e) for e in call.args[1].ty.shape.values) for call in calls]


def three(shape: Any, dtype: str = "float32", biased: tuple[bool, ...] = (True, True, True)) -> tvm.IRModule:
    """Three linear layers of one operand, of 8, 12 and 4 columns."""

    def body(emit: Any, x: Any) -> Any:
        made = []
        for columns, has_bias in zip((8, 12, 4), biased):
            y = emit(R.matmul(x, constant(16, columns, dtype=dtype)))
            made.append(emit(R.add(y, constant(columns, dtype=dtype))) if has_bias else y)
        return emit(R.concat([emit(R.tanh(y)) for y in made], axis=-1))

    return build(body, (list(shape), dtype))


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    built = tvm.compile(mod, "llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_before_and_after() -> None:
    a, b = np.arange(6, dtype="float32").reshape(2, 3), np.arange(4, dtype="float32").reshape(2, 2)
    bias = np.array([5, 7], "float32")

    def before(emit: Any, x: Any) -> Any:
        left = emit(R.matmul(x, relax.const(a)))
        right = emit(R.add(emit(R.matmul(x, relax.const(b))), relax.const(bias)))
        return emit(R.concat([emit(R.exp(left)), right], axis=-1))

    def after(emit: Any, x: Any) -> Any:
        joined = emit(R.matmul(x, relax.const(np.concatenate([a, b], 1)), out_dtype="float32"))
        parts = emit(
            R.split(emit(R.add(joined, relax.const(np.array([0, 0, 0, 5, 7], "float32")))), [3], axis=1)
        )
        left = emit(parts[0])
        right = emit(parts[1])
        return emit(R.concat([emit(R.exp(left)), right], axis=-1))

    made = JoinedProducts()(build(before, ([4, 2], "float32")))
    tvm.ir.assert_structural_equal(made, build(after, ([4, 2], "float32")))


@pytest.mark.parametrize("biased", [(True, True, True), (False, True, False), (False, False, False)])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16)])
def test_it_means_the_same(shape: tuple[int, ...], biased: tuple[bool, ...]) -> None:
    mod = three(shape, biased=biased)
    made = JoinedProducts()(mod)
    assert products(made) == [(16, 24)]
    x = RNG.standard_normal(shape).astype("float32")
    np.testing.assert_allclose(run(made, x), run(mod, x), rtol=0, atol=1e-6)


def test_symbolic_rows() -> None:
    assert products(JoinedProducts()(three((symbol("n"), 7, 16)))) == [(16, 24)]


def test_half_types_keep_theirs() -> None:
    made = JoinedProducts()(three((3, 16), "float16"))
    assert products(made) == [(16, 24)]
    assert {
        str(v.ty.dtype)
        for v in relax.analysis.get_var2val(made["main"])
        if isinstance(v.ty, relax.TensorType)
    } == {"float16"}


def _two(make: Any) -> tvm.IRModule:
    return build(make, ([4, 16], "float32"), ([4, 16], "float32"), ([16, 8], "float32"))


def _of_two_operands(emit: Any, x: Any, y: Any, _w: Any) -> Any:
    return emit(R.add(emit(R.matmul(x, constant(16, 8))), emit(R.matmul(y, constant(16, 8)))))


def _of_a_parameter(emit: Any, x: Any, _y: Any, w: Any) -> Any:
    return emit(R.add(emit(R.matmul(x, w)), emit(R.matmul(x, constant(16, 8)))))


def _of_batches(emit: Any, x: Any, _y: Any, _w: Any) -> Any:
    return emit(R.add(emit(R.matmul(x, constant(2, 16, 8))), emit(R.matmul(x, constant(2, 16, 8)))))


def _of_one_weight(emit: Any, x: Any, _y: Any, _w: Any) -> Any:
    weight = constant(16, 8)
    return emit(R.add(emit(R.matmul(x, weight)), emit(R.exp(emit(R.matmul(x, weight))))))


@pytest.mark.parametrize("make", [_of_two_operands, _of_a_parameter, _of_batches, _of_one_weight])
def test_others_stay(make: Any) -> None:
    mod = _two(make)
    tvm.ir.assert_structural_equal(JoinedProducts()(mod), mod)


def test_what_is_added_to_a_product_that_others_read_is_no_bias() -> None:
    """The product itself is the part then."""

    def body(emit: Any, x: Any) -> Any:
        first, second = emit(R.matmul(x, constant(16, 8))), emit(R.matmul(x, constant(16, 8)))
        return emit(R.add(emit(R.add(first, constant(8))), emit(R.multiply(first, second))))

    mod = build(body, ([4, 16], "float32"))
    made = JoinedProducts()(mod)
    assert products(made) == [(16, 16)]
    x = RNG.standard_normal((4, 16)).astype("float32")
    np.testing.assert_allclose(run(made, x), run(mod, x), rtol=0, atol=1e-5)


def test_attention_reads_the_parts_as_they_lie() -> None:
    """One kernel of attention follows the product: no copies of queries, keys and values."""

    def body(emit: Any, x: Any) -> Any:
        heads = []
        for _ in range(3):
            y = emit(R.add(emit(R.matmul(x, constant(32, 32))), constant(32)))
            heads.append(emit(R.permute_dims(emit(R.reshape(y, (1, 16, 2, 16))), [0, 2, 1, 3])))
        q, k, v = heads
        scores = emit(R.multiply(emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2])))), R.const(0.25)))
        return emit(R.matmul(emit(R.nn.softmax(scores, axis=-1)), v))

    mod = build(body, ([1, 16, 32], "float32"))
    x = RNG.standard_normal((1, 16, 32)).astype("float32")
    recorder = Recorder()
    made = run_cuda(mod, [x], relax_pipeline=pipeline(TARGET, None, recorder), target=TARGET).check()
    assert len(made.launches) == 2
    assert any(told.startswith("our kernel") for told in recorder.computed.values())
    wanted = run(mod, x)
    np.testing.assert_allclose(made.outputs[0], wanted, rtol=0, atol=5e-6 * abs(wanted).max())
