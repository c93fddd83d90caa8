# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries against float64, in the emulator: splits of the keys, heads that share keys, odd sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import lower, run_cuda, run_lowered
from cuda_emulator.launch import Launch
from stitch_testing.random.graphs import emulated_target
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.compute.attention_modules import calling, check_causal, described
from tests.graph.helpers import build, cuda_source, symbol
from tvm_stitch.compute.attention import Attention, Operand
from tvm_stitch.compute.cuda.attention_few import FewQueries, cuda_attention_few, few_queries
from tvm_stitch.device import GPUS
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.support.failures import Refusal

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 2e-6}
TARGET = emulated_target()
H200 = GPUS["h200"]

CASES = [
    (Case(1, 2, 1, 45, 16), 1),
    (Case(1, 2, 1, 300, 64, "bfloat16"), 4),
    (Case(2, 3, 4, 700, 64), 8),
    (Case(1, 1, 1, 1, 8, "float32"), 1),
    (Case(1, 2, 3, 513, 80, "float32"), 8),
    (Case(2, 2, 1, 130, 33, mask=(2, 1, 1, 130)), 2),
    (Case(1, 1, 5, 1500, 128, "float32", mask=(1, 1, 5, 1500), safe=True), 8),
    (Case(1, 2, 2, 70, 256, "float32"), 1),
    (Case(1, 1, 7, 129, 256, "bfloat16"), 2),
    (Case(1, 1, 2, 67, 1), 1),
]


def close(case: Case, found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    tolerance = TOLERANCE[case.dtype] * max(1e-30, abs(wanted).max(initial=0))
    np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0, atol=tolerance)


def run_of(
    attention: Attention, arrays: list[np.ndarray], is_fallback: bool = False
) -> tuple[np.ndarray, Launch]:
    """Return what the kernel computes, and its launch."""
    mod = calling(cuda_attention_few(attention, [], H200, is_fallback), attention)
    done = run_cuda(
        mod, arrays, relax_pipeline=tvm_stitch.relax.pipeline(TARGET), target=TARGET, tir_pipeline=LOWERING
    ).check()
    (launch,) = done.launches
    return done.outputs[0], launch


@pytest.mark.parametrize(("case", "blocks"), CASES, ids=str)
def test_against_float64(case: Case, blocks: int) -> None:
    arrays = inputs(case, np.random.default_rng())
    run = run_cuda(
        module(case),
        arrays,
        relax_pipeline=tvm_stitch.relax.pipeline(TARGET),
        target=TARGET,
        tir_pipeline=LOWERING,
    ).check()
    (launch,) = run.launches
    assert launch.cluster[0] == blocks
    close(case, run.outputs[0], reference(case, arrays))


def test_symbolic_extents() -> None:
    """One kernel for all batches and lengths, 0 among them."""
    b, n = symbol("b"), symbol("n")
    case = Case(b, 2, 1, n, 16, "float32", mask=(b, 1, 1, n), safe=True)
    lowered = lower(module(case), TARGET, tvm_stitch.relax.pipeline(TARGET), LOWERING)
    for batch, keys in ((2, 33), (1, 1), (3, 1025), (0, 7)):
        found = replace(case, batch=batch, keys=keys, mask=(batch, 1, 1, keys))
        arrays = inputs(found, np.random.default_rng())
        run = run_lowered(lowered, arrays).check()
        close(found, run.outputs[0], reference(found, arrays))


@pytest.mark.parametrize(("group", "queries"), [(4, 1), (3, 2), (5, 3)])
def test_heads_that_share_keys(group: int, queries: int) -> None:
    """All queries of the heads read a key together, where it lies."""
    batch, heads, keys, size = 2, 2, 200, 32
    whole = described(Case(batch, heads * group, queries, keys, size, "float32"))
    few = described(Case(batch, heads, queries, keys, size, "float32"))
    row = heads * group * size

    def grouped(strides: Any) -> Any:
        return strides[1], strides[2] * group, strides[2], strides[3]

    attention = replace(
        whole,
        leading=(batch, heads, group),
        q=replace(whole.q, strides=grouped(whole.q.strides)),
        out=replace(whole.out, strides=grouped(whole.out.strides)),
        k=replace(few.k, strides=(few.k.strides[1], few.k.strides[2], 0, few.k.strides[3])),
        v=replace(few.v, strides=(few.v.strides[1], few.v.strides[2], 0, few.v.strides[3])),
    )
    assert row == whole.q.strides[3]
    random = np.random.default_rng()
    q = random.standard_normal((batch, queries, heads * group, size)).astype("float32")
    k, v = (random.standard_normal((batch, keys, heads, size)).astype("float32") for _ in range(2))
    found, launch = run_of(attention, [q, k, v])
    tiles = -(-group * queries // 4)
    assert launch.grid[0] == batch * heads * tiles * launch.cluster[0]
    case = Case(batch, heads * group, queries, keys, size, "float32")
    close(case, found, reference(case, [q, np.repeat(k, group, 2), np.repeat(v, group, 2)]))


def test_masks_of_heads_that_share_keys() -> None:
    group, keys, size = 3, 70, 16
    mask = Operand((1, group, 2, keys), "float32", 0, (0, 0, 2 * keys, keys, 1))
    q = Operand((1, group, 2, size), "float32", 0, (0, 0, 2 * size, size))
    k = Operand((1, 1, keys, size), "float32", 0, (0, 0, 0, size))
    attention = Attention((1, 1, group), 2, keys, size, 0.25, q, k, k, q, mask)
    random = np.random.default_rng()
    arrays = [random.standard_normal(each.shape).astype("float32") for each in (q, k, k, mask)]
    found, _ = run_of(attention, arrays)
    wide = [each.astype("float64") for each in arrays]
    scores = 0.25 * wide[0] @ wide[1].swapaxes(2, 3) + wide[3]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True) @ wide[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("queries", "keys", "offset"), [(4, 70, 66), (3, 200, 5), (4, 20, -2)])
def test_causal(queries: int, keys: int, offset: int) -> None:
    case = Case(1, 2, queries, keys, 16, "float32")
    check_causal(case, offset, lambda attention, arrays: run_of(attention, arrays)[0], 1e-5)


def test_what_is_not_finite() -> None:
    """NaN in a query or a value goes where the products take it, and nowhere else."""
    case = Case(1, 1, 3, 300, 16, "float32")
    arrays = inputs(case, np.random.default_rng(0))
    arrays[0][0, 1, 0, 5] = np.nan
    arrays[2][0, 299, 0, 7] = np.inf
    found = run_of(described(case), arrays)[0][0, :, 0]
    assert np.isnan(found[1]).all() and np.isposinf(found[[0, 2], 7]).all()
    assert np.isfinite(np.delete(found[[0, 2]], 7, 1)).all()


def test_how_queries_and_keys_are_divided() -> None:
    def of(*case: Any) -> FewQueries:
        return few_queries(described(Case(*case)), H200)

    assert of(1, 8, 4, 513, 64) == FewQueries(group=1, rows=4, tiles=1, blocks=8, warps=8)
    assert of(1, 8, 5, 100, 64, "float32") == FewQueries(group=1, rows=4, tiles=2, blocks=1, warps=16)
    assert of(1, 8, 5, 100, 64) == FewQueries(group=1, rows=16, tiles=1, blocks=1, units=True, warps=8)
    assert of(1, 8, 33, 4096, 64) == FewQueries(group=1, rows=32, tiles=2, blocks=8, units=True, warps=8)
    assert of(1, 8, 32, 4096, 128) == FewQueries(group=1, rows=16, tiles=2, blocks=8, units=True, warps=8)
    assert of(1, 8, 4, 512, 64).warps == 4  # a block's 64 keys are read at once
    assert of(1, 8, 4, 1024, 64).warps == 8 and of(1, 8, 4, 2047, 64).warps == 16
    assert of(1, 8, 4, 4096, 64) == FewQueries(group=1, rows=16, tiles=1, blocks=8, units=True, warps=16)
    assert of(1, 8, 4, 4096, 128).warps == 8 and of(1, 8, 2, 4096, 64).units is False
    assert of(1, 8, 4, symbol("n"), 64).units and of(1, 8, 4, symbol("n"), 64).warps == 8
    assert of(1, 100, 1, 4096, 64) == FewQueries(group=1, rows=1, tiles=1, blocks=2)
    assert of(64, 32, 1, 4096, 64) == FewQueries(group=1, rows=1, tiles=1, blocks=1)
    assert of(symbol(), 8, 2, symbol("n"), 64) == FewQueries(group=1, rows=2, tiles=1, blocks=8)


def test_refusals() -> None:
    with pytest.raises(Refusal, match="17 queries of heads that share keys"):
        few_queries(described(Case(1, 8, 17, 513, 64, "float32")), H200)
    with pytest.raises(Refusal, match="65 queries of heads that share keys"):
        few_queries(described(Case(1, 8, 65, 513, 64)), H200)
    with pytest.raises(Refusal, match="its number of queries is symbolic"):
        few_queries(described(Case(1, 8, symbol(), 513, 64)), H200)
    with pytest.raises(Refusal, match="blocks for 8 heads alone leave a device without clusters idle"):
        few_queries(described(Case(1, 8, 1, 513, 64)), GPUS["a100"])
    assert few_queries(described(Case(16, 8, 1, 513, 64)), GPUS["a100"]).blocks == 1
    with pytest.raises(Refusal, match="heads of 257 elements"):
        cuda_attention_few(described(Case(1, 8, 1, 513, 257)), [], H200)


ON_UNITS = [
    (Case(1, 2, 5, 300, 64, "float16"), 4),
    (Case(1, 1, 15, 1025, 128, "bfloat16"), 8),
    (Case(2, 2, 11, 33, 96, "bfloat16", mask=(2, 1, 1, 33)), 1),
    (Case(1, 3, 16, 200, 40, "float16", mask=(1, 3, 16, 200), safe=True), 2),
    (Case(1, 1, 50, 700, 64, "float16", mask=(1, 1, 50, 700)), 8),
    (Case(1, 2, 64, 257, 128, "bfloat16"), 4),
    (Case(1, 2, 31, 1, 8, "float16"), 1),
]


@pytest.mark.parametrize(("case", "blocks"), ON_UNITS, ids=str)
def test_matrix_units_against_float64(case: Case, blocks: int) -> None:
    arrays = inputs(case, np.random.default_rng())
    assert few_queries(described(case), H200).units
    if case.mask is None:
        found, launch = run_of(described(case), arrays)
    else:
        pipeline = tvm_stitch.relax.pipeline(TARGET)
        run = run_cuda(
            module(case), arrays, relax_pipeline=pipeline, target=TARGET, tir_pipeline=LOWERING
        ).check()
        (found,), (launch,) = run.outputs, run.launches
    assert launch.cluster[0] == blocks
    close(case, found, reference(case, arrays))


def test_heads_that_share_keys_on_matrix_units() -> None:
    """Four tokens of four heads are the 16 rows of a tile."""
    group, queries, keys, size = 4, 4, 90, 64
    q = Operand((1, queries, group, size), "float16", 0, (0, 0, size, group * size))
    k = Operand((1, keys, size), "float16", 0, (0, 0, 0, size))
    attention = Attention((1, 1, group), queries, keys, size, 0.125, q, k, k, q, None, causal=keys - queries)
    random = np.random.default_rng()
    arrays = [random.standard_normal(each.shape).astype("float16") for each in (q, k, k)]
    found, launch = run_of(attention, arrays)
    assert launch.grid[0] == launch.cluster[0] == few_queries(attention, H200).blocks
    wide = [each.astype("float64") for each in arrays]
    scores = 0.125 * np.einsum("bqgd,bkd->bgqk", wide[0], wide[1])
    scores += np.where(np.arange(keys) > np.arange(queries)[:, None] + keys - queries, -np.inf, 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum("bgqk,bkd->bqgd", weights / weights.sum(-1, keepdims=True), wide[2])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * abs(wanted).max())


def test_as_a_fallback_it_takes_any_number_of_queries() -> None:
    case = Case(1, 2, 37, 50, 136)
    arrays = inputs(case, np.random.default_rng())
    found, launch = run_of(described(case), arrays, is_fallback=True)
    assert launch.grid[0] == 2 * 10 and len(found) == 1
    close(case, found, reference(case, arrays))


def test_kernels_of_many_and_of_few_queries_are_in_one_module() -> None:
    """Their shared memory has different types. CUDA C declares it once for each name, whatever the kernel."""

    def body(emit: Any, *operands: Any) -> Any:
        return [emit(R.nn.attention(each, each, each)) for each in operands]

    mod = build(body, ((1, 64, 2, 32), "float16"), ((1, 8, 2, 32), "float16"))
    source = cuda_source(mod)
    names = re.findall(r"extern __shared__ \S+ (\w+) (\w+)\[\]", source)
    assert len({dtype for dtype, _ in names}) == 2
    assert len(dict(map(reversed, names))) == len(set(names))
