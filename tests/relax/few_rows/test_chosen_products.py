# SPDX-License-Identifier: Apache-2.0
"""Products by matrices that are chosen when the model runs read them where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, emulated
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.few_rows.chosen_products import MATMUL, ChosenProducts
from tvm_stitch.relax.rewriting.operators import has_operators

EXPERTS, INNER, HIDDEN = 6, 40, 64
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 49152}, host="llvm")


def experts(dtype: str, tokens: int) -> tuple[tvm.IRModule, list[np.ndarray], np.ndarray]:
    """Return a layer of experts with a router and a residual, its inputs, and the result in float64."""
    rng = np.random.default_rng(tokens)
    up = (rng.standard_normal((EXPERTS, 2 * INNER, HIDDEN)) * HIDDEN**-0.5).astype(dtype)
    down = (rng.standard_normal((EXPERTS, HIDDEN, INNER)) * INNER**-0.5).astype(dtype)
    x, scores = rng.standard_normal((tokens, HIDDEN)).astype(dtype), rng.standard_normal((tokens, EXPERTS))
    scores = scores.astype("float32")

    def body(emit: Any, x: Any, scores: Any) -> Any:
        both = emit(R.topk(emit(R.nn.softmax(scores, -1)), 2, -1, "both", True, "int64"))
        shares, chosen = (emit(relax.TupleGetItem(both, i)) for i in range(2))
        chosen = emit(R.reshape(chosen, [2 * tokens]))
        rows = emit(
            R.reshape(
                emit(R.broadcast_to(emit(R.expand_dims(x, 1)), [tokens, 2, HIDDEN])), [2 * tokens, HIDDEN, 1]
            )
        )
        both = emit(R.matmul(emit(R.take(relax.const(up), chosen, 0)), rows))
        parts = emit(R.split(emit(R.squeeze(both, [2])), 2, -1))
        gate, value = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
        inner = emit(R.multiply(emit(R.nn.silu(gate)), value))
        turned = emit(R.permute_dims(emit(R.take(relax.const(down), chosen, 0)), [0, 2, 1]))
        outer = emit(R.squeeze(emit(R.matmul(emit(R.expand_dims(inner, 1)), turned)), [1]))
        shared = emit(R.multiply(emit(R.astype(outer, "float32")), emit(R.reshape(shares, [2 * tokens, 1]))))
        summed = emit(R.sum(emit(R.reshape(shared, [tokens, 2, HIDDEN])), 1))
        return R.add(emit(R.astype(x, "float32")), summed)

    shares = np.exp(scores.astype("float64"))
    shares /= shares.sum(-1, keepdims=True)
    wanted = x.astype("float64")
    for token in range(tokens):
        for expert in np.argsort(-scores[token])[:2]:
            gate, value = np.split(up[expert].astype("float64") @ x[token].astype("float64"), 2)
            inner = gate / (1 + np.exp(-gate)) * value
            wanted[token] += shares[token, expert] * (down[expert].astype("float64") @ inner)
    return build(body, ((tokens, HIDDEN), dtype), ((tokens, EXPERTS), "float32")), [x, scores], wanted


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float16", 4e-3)])
def test_a_layer_of_experts_is_right(dtype: str, tolerance: float, tokens: int) -> None:
    mod, given, wanted = experts(dtype, tokens)
    (got,) = emulated(mod, *given)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * abs(wanted).max())


@pytest.mark.parametrize("tokens", [1, 8])
def test_a_layer_of_experts_is_one_kernel_without_copies(tokens: int) -> None:
    mod, _, _ = experts("bfloat16", tokens)
    counted = count_kernels(mod, CUDA, pipeline(CUDA))
    assert counted.total == 1, counted.names
    (kernel,) = tvm_stitch.explain(mod, CUDA).kernels
    assert kernel.bytes_read is not None and kernel.bytes_written is not None
    weights = 2 * tokens * INNER * HIDDEN * 2
    assert kernel.bytes_read <= 1.5 * kernel.bytes_least and kernel.bytes_written < weights


def rewritten(left: Any, right: Any, *specs: Any) -> bool:
    mod = build(lambda emit, *given: R.matmul(left(emit, *given), right(emit, *given)), *specs)
    return not has_operators(ChosenProducts()(mod), {MATMUL})


W, AT = ((EXPERTS, 8, 16), "float32"), ((4,), "int64")


def test_other_products_stay() -> None:
    def taken(emit: Any, w: Any, at: Any, _: Any) -> Any:
        return emit(R.take(w, at, 0))

    def third(emit: Any, w: Any, at: Any, x: Any) -> Any:
        return x

    def inner(emit: Any, w: Any, at: Any, _: Any) -> Any:
        return emit(R.take(w, at, 1))

    def whole(emit: Any, w: Any, at: Any, _: Any) -> Any:
        return w

    assert rewritten(taken, third, W, AT, ((4, 16, 1), "float32"))
    assert not rewritten(taken, third, W, AT, ((4, 16, 3), "float32"))  # several vectors share a matrix
    assert not rewritten(inner, third, W, AT, ((EXPERTS, 16, 1), "float32"))
    assert not rewritten(whole, third, W, AT, ((EXPERTS, 16, 1), "float32"))
    assert not rewritten(third, taken, W, AT, ((4, 1, 8), "float32"))  # its columns are added up, far apart
