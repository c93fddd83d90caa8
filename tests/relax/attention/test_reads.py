# SPDX-License-Identifier: Apache-2.0
"""Attention reads keys and values once, as they are stored, in the types that a device multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch.relax
from stitch_testing.workloads.attention import Case, module
from tests.graph.helpers import build
from tests.relax.attention.attention_graphs import B, D, H, S, T, fused, kernels
from tests.relax.modules import operators
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.target import resolve_target


def test_attention_is_ours_on_a_cpu_where_products_are_tvm_s() -> None:
    target, mod = resolve_target("llvm"), module(Case(B, H, S, T, D, dtype="float32"))
    asked, told = fused(mod, target, compute="tvm, attention=auto")
    assert kernels(asked) == 1 and "our kernel" in " ".join(told.values())
    left, told = fused(mod, target, compute="tvm")
    assert kernels(left) == 0 and "asked for" in " ".join(told.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("widened", [False, True])
def test_keys_of_several_heads_are_read_once_on_a_cpu(dtype: str, widened: bool) -> None:
    """Heads that repeat keys are further queries. Casts of half types to float32 are the kernel's."""
    queries, heads, group, keys, size = 2, 3, 4, 70, 16
    builder = relax.BlockBuilder()
    shapes = ((heads * group, queries), (heads, keys), (heads, keys))
    params = [
        relax.Var(name, relax.TensorType((1, *shape, size), dtype)) for name, shape in zip("qkv", shapes)
    ]
    emit = builder.emit
    with builder.function("main", params):
        with builder.dataflow():
            q, k, v = params
            k, v = (
                emit(
                    R.reshape(
                        emit(R.broadcast_to(emit(R.expand_dims(x, 2)), (1, heads, group, keys, size))),
                        (1, heads * group, keys, size),
                    )
                )
                for x in (k, v)
            )
            if widened:
                q, k, v = (emit(R.astype(x, "float32")) for x in (q, k, v))
            scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
            weights = emit(R.nn.softmax(emit(R.multiply(scores, relax.const(0.25, str(scores.ty.dtype))))))
            result = builder.emit_output(R.matmul(weights, v))
        builder.emit_func_output(result)
    mod, target = builder.get(), tvm.target.Target("llvm")
    assert count_kernels(mod, target, tvm_stitch.relax.pipeline(target)).total == 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, *shape, size)).astype(dtype) for shape in shapes]
    executable = tvm.compile(mod, target, relax_pipeline=tvm_stitch.relax.pipeline(target))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = main(*[tvm.runtime.tensor(array) for array in arrays]).numpy().astype("float64")
    q, k, v = (array.astype("float64") for array in arrays)
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * 0.25
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    tolerance = 5e-3 if dtype == "bfloat16" and not widened else 1e-6
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(("queries", "kept"), [(1, "bfloat16"), (40, "float32")])
def test_few_queries_read_keys_as_they_lie(queries: int, kept: str) -> None:
    """A cache of a half type is not widened in memory, and heads that share keys are not copied."""

    def widened(emit: Any, q: Any, k: Any, v: Any) -> Any:
        def repeated(x: Any) -> Any:
            shape = [B, H // 2, 2, T, D]
            return emit(R.reshape(emit(R.broadcast_to(emit(R.expand_dims(x, [2])), shape)), [B, H, T, D]))

        q, k, v = (emit(R.astype(x, "float32")) for x in (q, repeated(k), repeated(v)))
        turned = emit(R.multiply(emit(R.permute_dims(k, [0, 1, 3, 2])), relax.const(0.25, "float32")))
        weights = emit(R.nn.softmax(emit(R.matmul(q, turned)), -1))
        return emit(R.astype(emit(R.matmul(weights, v)), "bfloat16"))

    cache = ((B, H // 2, T, D), "bfloat16")
    mod, computed = fused(build(widened, ((B, H, queries, D), "bfloat16"), cache, cache))
    (how,) = computed.values()
    assert how.startswith("our kernel")
    (func,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert {str(each.dtype) for each in func.params[1:3]} == {kept}
    assert ("broadcast_to" in operators(mod)) == (kept == "float32")


def test_few_queries_of_floats_read_widened_keys() -> None:
    def widened(emit: Any, q: Any, k: Any, v: Any) -> Any:
        k, v = (emit(R.astype(x, "float32")) for x in (k, v))
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        return emit(R.matmul(emit(R.nn.softmax(scores, -1)), v))

    cache = ((B, H, T, D), "bfloat16")
    mod, computed = fused(build(widened, ((B, H, 1, D), "float32"), cache, cache))
    (how,) = computed.values()
    assert how.startswith("our kernel")
    (func,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert {str(each.dtype) for each in func.params[:3]} == {"float32"}


@pytest.mark.parametrize(
    ("wide", "function"), [(True, "attention_few_bfloat16"), (False, "attention_few_units_bfloat16")]
)
def test_weights_of_float32_are_not_rounded_for_matrix_units(wide: bool, function: str) -> None:
    def softmaxed(emit: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (emit(R.astype(x, "float32")) if wide else x for x in (q, k, v))
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        return emit(R.astype(emit(R.matmul(emit(R.nn.softmax(scores, -1)), v)), "bfloat16"))

    shapes = [((B, H, rows, D), "bfloat16") for rows in (6, T, T)]
    mod, _ = fused(build(softmaxed, *shapes))
    (func,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert f"tvm_stitch_{function}" in func.script()
