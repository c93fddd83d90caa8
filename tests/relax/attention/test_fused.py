# SPDX-License-Identifier: Apache-2.0
"""Attention is found as models spell it, computed by one kernel, and left alone where it is something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from cuda_emulator import run_cuda
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.graph.helpers import build, symbol
from tests.relax.attention.attention_graphs import TARGET, B, D, H, S, T, fused, heads, kernels
from tests.relax.modules import operators
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.target import resolve_target

Body = Callable[..., Any]


def scalar(value: float) -> Any:
    return relax.const(value, "float16")


def core(emit: Any, q: Any, k: Any, v: Any, between: Body | None = None) -> Any:
    """Attention of q <..., S, D>, k <..., T, D> and v."""
    axes = list(range(len(k.ty.shape)))
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [*axes[:-2], axes[-1], axes[-2]]))))
    scores = between(emit, scores) if between else scores
    return emit(R.matmul(emit(R.nn.softmax(scores, -1)), v))


def projected(emit: Any, qkv: Any) -> Any:
    """Build one projection of all three, taken apart as timm does."""
    apart = emit(R.permute_dims(emit(R.reshape(qkv, [B, S, 3, H, D])), [2, 0, 3, 1, 4]))
    parts = [emit(R.strided_slice(apart, [0], [i], [i + 1])) for i in range(3)]
    q, k, v = (emit(R.squeeze(part, [0])) for part in parts)
    out = heads(emit, core(emit, q, k, v))
    return emit(R.reshape(out, [B, S, H * D]))


def rounded_late(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Keys of float32 are scaled, transposed and rounded, as those that positions rotate."""
    q, k, v = (heads(emit, x) for x in (q, k, v))
    wide = emit(R.multiply(emit(R.permute_dims(k, [0, 1, 3, 2])), relax.const(0.5, "float32")))
    scores = emit(R.matmul(q, emit(R.astype(wide, "float16"))))
    return emit(R.matmul(emit(R.nn.softmax(scores, -1)), v))


def grouped(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Four heads of queries, two of keys, each of which is repeated."""

    def repeated(x: Any) -> Any:
        wide = emit(R.broadcast_to(emit(R.expand_dims(heads(emit, x), [2])), [B, 2, 2, T, D]))
        return emit(R.reshape(wide, [B, H, T, D]))

    return core(emit, heads(emit, q), repeated(k), repeated(v))


def shared(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Build one head of keys for all of queries."""
    return core(emit, heads(emit, q), heads(emit, k), heads(emit, v))


def split(emit: Any, qkv: Any) -> Any:
    """Split one projection as GPT-2 does, with an operator whose operands were permuted before and are again."""
    parts = emit(R.split(qkv, [H * D, 2 * H * D], -1))
    q, k, v = (emit(R.reshape(emit(relax.TupleGetItem(parts, i)), [B, S, H, D])) for i in range(3))
    q, k, v = (heads(emit, heads(emit, x)) for x in (q, k, v))
    q = emit(R.multiply(q, scalar(2.0)))
    out = heads(emit, heads(emit, emit(R.nn.attention(q, k, v, scale=0.5))))
    return emit(R.reshape(out, [B, S, H * D]))


def split_evenly(emit: Any, qkv: Any) -> Any:
    parts = emit(R.split(emit(R.reshape(qkv, [B, S, 3 * H, D])), 3, 2))
    q, k, v = (heads(emit, emit(relax.TupleGetItem(parts, i))) for i in range(3))
    return emit(R.reshape(heads(emit, core(emit, q, k, v)), [B, S, H * D]))


def scaled(emit: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (heads(emit, x) for x in (q, k, v))
    q, k = emit(R.multiply(q, scalar(0.5))), emit(R.multiply(scalar(0.5), k))
    return core(emit, q, k, v, lambda emit, s: emit(R.divide(s, scalar(2.0))))


def windows(emit: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    """Add two masks to scores with other leading axes."""

    def between(emit: Any, scores: Any) -> Any:
        scores = emit(R.reshape(emit(R.add(scores, bias)), [B // 2, 2, H, S, T]))
        return emit(R.reshape(emit(R.add(scores, mask)), [B, H, S, T]))

    return core(emit, *(heads(emit, x) for x in (q, k, v)), between)


Q, K = ((B, S, H, D), "float16"), ((B, T, H, D), "float16")


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(x / x.sum(-1, keepdims=True))


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0, mask: Any = 0.0) -> np.ndarray:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return np.asarray(softmax(scale * (q @ k.transpose(0, 1, 3, 2)) + mask) @ v)


def of_projection(x: np.ndarray) -> np.ndarray:
    q, k, v = np.moveaxis(x.reshape(B, S, 3, H, D), 2, 0)
    return plain(q, k, v).transpose(0, 2, 1, 3).reshape(B, S, H * D)


def of_groups(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return plain(q, k.repeat(H // k.shape[2], 2), v.repeat(H // v.shape[2], 2))


SPELLINGS: list[tuple[Body, list[Any], Callable[..., np.ndarray], list[str]]] = [
    (projected, [((B, S, 3 * H * D), "float16")], of_projection, []),
    (split, [((B, S, 3 * H * D), "float16")], of_projection, []),
    (split_evenly, [((B, S, 3 * H * D), "float16")], of_projection, []),
    (grouped, [Q, *[((B, T, 2, D), "float16")] * 2], of_groups, []),
    (shared, [Q, *[((B, T, 1, D), "float16")] * 2], of_groups, []),
    (scaled, [Q, K, K], lambda *x: plain(*x, 0.125), []),
    (
        windows,
        [Q, K, K, ((1, H, S, T), "float16"), ((1, 2, 1, S, T), "float16")],
        lambda q, k, v, bias, mask: plain(q, k, v, 1.0, bias + mask[0]),
        ["add"],
    ),
    (
        rounded_late,
        [((B, S, H, D), "float16"), ((B, T, H, D), "float32"), ((B, T, H, D), "float16")],
        lambda q, k, v: plain(q, k, v, 0.5),
        ["multiply", "astype"],
    ),
]


@pytest.mark.parametrize(("body", "specs", "wanted", "rest"), SPELLINGS)
def test_spellings(body: Body, specs: list[Any], wanted: Callable[..., np.ndarray], rest: list[str]) -> None:
    """Check one kernel that reads the arguments themselves. Nothing else is computed but what is named."""
    mod = build(body, *specs)
    made, told = fused(mod)
    assert len(told) == 1 and all(how.startswith("our kernel") for how in told.values()), told
    assert kernels(made) == 1
    assert [name for name in operators(made) if name not in ("call_tir", "reshape")] == rest
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in specs]
    run = run_cuda(
        mod, arrays, relax_pipeline=tvm_stitch.relax.pipeline(TARGET), target=TARGET, tir_pipeline=LOWERING
    ).check()
    exact = wanted(*(a.astype("float64") for a in arrays))
    np.testing.assert_allclose(run.outputs[0].astype("float64"), exact, rtol=0, atol=4e-3)


def returned(emit: Any, q: Any, k: Any, v: Any) -> Any:
    weights = []

    def between(emit: Any, scores: Any) -> Any:
        weights.append(scores)
        return scores

    return [core(emit, *(heads(emit, x) for x in (q, k, v)), between), emit(R.exp(weights[0]))]


def scaled_mask(emit: Any, q: Any, k: Any, v: Any) -> Any:
    def between(emit: Any, scores: Any) -> Any:
        return emit(R.multiply(emit(R.add(scores, relax.const(np.ones((S, T), "float16")))), scalar(0.5)))

    return core(emit, *(heads(emit, x) for x in (q, k, v)), between)


def squared(emit: Any, q: Any, k: Any, v: Any) -> Any:
    return core(emit, *(heads(emit, x) for x in (q, k, v)), lambda emit, s: emit(R.square(s)))


def rounded(emit: Any, q: Any, k: Any, v: Any) -> Any:
    def between(emit: Any, scores: Any) -> Any:
        return emit(R.astype(emit(R.astype(scores, "int32")), "float16"))

    return core(emit, *(heads(emit, x) for x in (q, k, v)), between)


def other_axis(emit: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (heads(emit, x) for x in (q, k, v))
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
    return emit(R.matmul(emit(R.nn.softmax(scores, 2)), v))


def otherwise_masked(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Weights of masked rows are 1, not 0."""
    scores = emit(R.matmul(heads(emit, q), emit(R.permute_dims(heads(emit, k), [0, 1, 3, 2]))))
    weights = emit(R.nn.softmax(scores, -1))
    masked = emit(R.equal(scores, scalar(float("-inf"))))
    seen = emit(R.astype(emit(R.logical_not(masked)), "int8"))
    some = emit(R.astype(emit(R.max(seen, [-1], keepdims=True)), "bool"))
    weights = emit(R.where(emit(R.logical_not(some)), scalar(1.0), weights))
    return emit(R.matmul(weights, heads(emit, v)))


@pytest.mark.parametrize("body", [returned, scaled_mask, squared, rounded, other_axis, otherwise_masked])
def test_what_is_no_attention_is_left(body: Body) -> None:
    mod = build(body, Q, K, K)
    made, told = fused(mod)
    tvm.ir.assert_structural_equal(made, mod)
    assert told == {}


@pytest.mark.parametrize(
    ("case", "options", "target", "reason"),
    [
        (Case(2, 4, 20, 20, 16, "float32"), {"tf32": True}, TARGET, "TensorFloat-32"),
        (Case(2, 4, 2, 20, 16), {}, {"kind": "cuda", "arch": "sm_80"}, "a device without clusters idle"),
        (Case(2, 4, 20, 20, 256), {}, TARGET, "heads of 256"),
        (Case(2, 4, 20, 20, 16), {"compute": "tvm"}, TARGET, "asked for"),
        (Case(2, 4, 20, 20, 16), {}, {"kind": "cuda", "arch": "sm_75"}, "compute capability 8.0"),
    ],
)
def test_refusals(case: Case, options: dict[str, Any], target: Any, reason: str) -> None:
    mod = module(case)
    made, told = fused(mod, resolve_target(target), **options)
    tvm.ir.assert_structural_equal(made, mod)
    assert [reason in how for how in told.values()] == [True]


def test_equal_attention_is_one_function() -> None:
    def body(emit: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (heads(emit, x) for x in (q, k, v))
        return core(emit, heads(emit, heads(emit, core(emit, q, k, v))), k, v)

    made, told = fused(build(body, Q, Q, Q))
    assert len(told) == 2 and operators(made).count("call_tir") == 2
    assert kernels(made) <= 2


def test_sizes_that_no_input_has() -> None:
    """A symbol that no operand has as an extent of its own is passed to the kernel."""
    n = symbol()

    def body(emit: Any, x: Any) -> Any:
        q, k, v = (emit(R.reshape(x, [2 * n, 2, S, D])) for _ in range(3))
        return core(emit, q, k, v)

    def summed(emit: Any, x: Any, y: Any) -> Any:
        return body(emit, emit(R.add(x, emit(R.reshape(y, [n * 4 * S * D])))))

    wide = build(summed, ((n * 4 * S * D,), "float16"), ((n, 4 * S * D), "float16"))
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s).astype("float16") for s in ((3 * 4 * S * D,), (3, 4 * S * D))]
    made, told = fused(wide)
    assert len(told) == 1 and kernels(made) == 1
    run = run_cuda(
        wide, arrays, relax_pipeline=tvm_stitch.relax.pipeline(TARGET), target=TARGET, tir_pipeline=LOWERING
    ).check()
    x = (arrays[0] + arrays[1].reshape(-1)).astype("float64").reshape(6, 2, S, D)
    exact = softmax(x @ x.transpose(0, 1, 3, 2)) @ x
    np.testing.assert_allclose(run.outputs[0].astype("float64"), exact, rtol=0, atol=4e-3)


@pytest.mark.parametrize("causal", [None, "TopLeft", "BottomRight"])
@pytest.mark.parametrize("biased", [False, True])
def test_the_operator(causal: str | None, biased: bool) -> None:
    """``R.nn.attention`` of <batch, row, head, element>, with TVM's own meaning of its attributes."""
    case = Case(B, H, S, T, D, mask=(B, 1, S, T) if biased else None)
    arrays = inputs(case, np.random.default_rng())

    def body(emit: Any, q: Any, k: Any, v: Any, *bias: Any) -> Any:
        return emit(R.nn.attention(q, k, v, *bias, scale=case.scale, causal_mask=causal))

    specs = [(a.shape, "float16") for a in arrays]
    mod = build(body, *specs)
    made, told = fused(mod)
    assert kernels(made) == 1 and [how.startswith("our kernel") for how in told.values()] == [True]
    run = run_cuda(
        mod, arrays, relax_pipeline=tvm_stitch.relax.pipeline(TARGET), target=TARGET, tir_pipeline=LOWERING
    ).check()
    seen = np.zeros((S, T))
    if causal is not None:
        offset = 0 if causal == "TopLeft" else T - S
        seen[np.arange(T) > np.arange(S)[:, None] + offset] = -np.inf
    mask = seen + (arrays[3].astype("float64") if biased else 0.0)
    mask = np.broadcast_to(mask, (B, 1, S, T))
    wanted = reference(Case(B, H, S, T, D, mask=mask.shape), [*arrays[:3], mask])
    np.testing.assert_allclose(run.outputs[0].astype("float64"), wanted, rtol=0, atol=4e-3)


def test_biases_before_it_are_computed_with_their_products() -> None:
    """A kernel that is written already computes none of what it reads: no kernel of its own stays behind a product.

    The three products are one.
    """

    def body(emit: Any, x: Any) -> Any:
        rng = np.random.default_rng()

        def projected_rows() -> Any:
            made = emit(R.matmul(x, relax.const(rng.standard_normal((H * D, H * D)).astype("float16"))))
            made = emit(R.add(made, relax.const(np.ones(H * D, "float16"))))
            return heads(emit, emit(R.reshape(made, [B, S, H, D])))

        out = core(emit, *(projected_rows() for _ in range(3)))
        return emit(R.reshape(heads(emit, out), [B, S, H * D]))

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    report = tvm_stitch.explain(
        build(body, ((B, S, H * D), "float16")), target, StitchConfig(compute="libraries")
    )
    told = list(report.computed.values())
    assert sum("with bias" in how for how in told) == 1 and sum("our kernel" in how for how in told) == 1
    assert report.kernels == []


def test_strict_takes_it() -> None:
    """It is no operator that is left to TVM."""
    report = tvm_stitch.explain(module(Case(2, 4, 20, 20, 16)), TARGET, StitchConfig(strict=True))
    assert not report.left and not report.kernels


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float16")


def wide_heads(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Combine every head of q with every head of k, whose heads were apart before."""
    return core(emit, q, emit(R.reshape(k, [1, 8, T, D])), emit(R.reshape(v, [1, 8, T, D])))


def regrouped(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Batches and heads change places without moving, and then move."""
    return core(emit, emit(R.permute_dims(emit(R.reshape(q, [3, 2, S, D])), [1, 0, 2, 3])), k, v)


def flat_keys(emit: Any, q: Any, k: Any, v: Any) -> Any:
    """Use a transposition that counts its axes from the end."""
    turned = emit(R.permute_dims(emit(R.reshape(k, [6, T, D])), [0, -1, -2]))
    scores = emit(R.matmul(emit(R.reshape(q, [6, S, D])), turned))
    return emit(R.matmul(emit(R.nn.softmax(scores, -1)), emit(R.reshape(v, [6, T, D]))))


def sliced(emit: Any, q: Any, k: Any, v: Any) -> Any:
    half = emit(R.strided_slice(emit(R.reshape(q, [6, 1, S, 2 * D])), [3], [D], [2 * D]))
    return core(emit, emit(R.reshape(half, [2, 3, S, D])), k, v)


def vector(emit: Any, q: Any, k: Any, v: Any) -> Any:
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 2, 1]))))
    return emit(R.matmul(emit(R.nn.softmax(scores, -1)), v))


def rounded_scale(emit: Any, q: Any, k: Any, v: Any) -> Any:
    nothing = emit(R.astype(emit(R.astype(relax.const(0.5, "float32"), "int32")), "float16"))
    return core(emit, q, k, v, lambda emit, scores: emit(R.multiply(scores, nothing)))


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0) -> np.ndarray:
    return softmax(scale * (q @ np.swapaxes(k, -1, -2))) @ v


QS, KS = (2, 3, S, D), (2, 3, T, D)

LOOKALIKES: list[tuple[Body, list[tuple[int, ...]], Callable[..., np.ndarray]]] = [
    (
        wide_heads,
        [(8, 1, S, D), (2, 2, 2, T, D), (2, 2, 2, T, D)],
        lambda q, k, v: attended(q, k.reshape(1, 8, T, D), v.reshape(1, 8, T, D)),
    ),
    (regrouped, [QS, KS, KS], lambda q, k, v: attended(q.reshape(3, 2, S, D).swapaxes(0, 1), k, v)),
    (flat_keys, [QS, KS, KS], lambda q, k, v: attended(q, k, v).reshape(6, S, D)),
    (
        sliced,
        [(2, 3, S, 2 * D), KS, KS],
        lambda q, k, v: attended(q[..., D:], k, v),
    ),
    (vector, [(1, 16, 16), (1, 16, 16), (16,)], attended),
    (rounded_scale, [QS, KS, KS], lambda q, k, v: attended(q, k, v, 0.0)),
]


@pytest.mark.parametrize(("body", "shapes", "wanted"), LOOKALIKES)
def test_what_nearly_is_attention(
    body: Body, shapes: list[tuple[int, ...]], wanted: Callable[..., np.ndarray]
) -> None:
    """Right whether it is taken or left."""
    mod = build(body, *((shape, "float16") for shape in shapes))
    arrays = [normal(np.random.default_rng(), *shape) for shape in shapes]
    run = run_cuda(
        mod, arrays, relax_pipeline=tvm_stitch.relax.pipeline(TARGET), target=TARGET, tir_pipeline=LOWERING
    ).check()
    exact = wanted(*(a.astype("float64") for a in arrays))
    np.testing.assert_allclose(run.outputs[0].astype("float64"), exact, rtol=0, atol=3e-2)
