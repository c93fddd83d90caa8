# SPDX-License-Identifier: Apache-2.0
"""Matmuls and convolutions keep the epilogues that TVM's own fusion gives them: what was tuned for those serves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from stitch_testing.reference.values import mismatches
from stitch_testing.relay import encoder
from stitch_testing.relay.count import count_kernels
from stitch_testing.relay.reference import evaluate
from stitch_testing.relay.run import build_stitched, run
from stitch_testing.workloads.equivalents import stitched_functions
from tvm_stitch import StitchConfig
from tvm_stitch.execution.kernel_count import CONTRACTION_NAMES
from tvm_stitch.relay import StitchOps, enable
from tvm_stitch.relay.stitch_ops import is_marked
from tvm_stitch.relay.traverse import post_order
from tvm_stitch.testing.workloads.bert import BertConfig

F32 = "float32"
CUDA, LLVM = "cuda -arch=sm_90", "llvm"
CONFIG = BertConfig(layers=1, hidden=64, heads=4, sequence=16, ffn=128, vocabulary=64)


def operators(func: Any) -> list[str]:
    return [e.op.name for e in post_order([func.body]) if isinstance(e, relay.Call)]


def contractions(mod: Any, params: Any, target: str) -> Counter[int]:
    """Return the primitive functions with a contraction that a build compiles, by structure."""
    optimized, _ = relay.optimize(mod, tvm.target.Target(target), params)
    found: Counter[int] = Counter()
    for e in post_order([optimized["main"].body]):
        if isinstance(e, relay.Function) and any(w in n for w in CONTRACTION_NAMES for n in operators(e)):
            assert not is_marked(e)
            found[tvm.ir.structural_hash(e)] += 1
    return found


def residual_block(channels: int = 8, size: int = 9) -> tvm.IRModule:
    """Build two convolutions with biases, and a residual that skips both. A projected one skips a third."""

    def convolved(x: Any, name: str, kernel: int = 3) -> Any:
        weight = relay.var(f"w{name}", shape=(channels, channels, kernel, kernel))
        bias = relay.var(f"b{name}", shape=(channels, 1, 1))
        return relay.nn.conv2d(x, weight, padding=(kernel // 2, kernel // 2)) + bias

    x = relay.var("x", shape=(1, channels, size, size))
    y = relay.nn.relu(convolved(relay.nn.relu(convolved(x, "0")), "1") + x)
    y = relay.nn.relu(convolved(y, "2") + convolved(y, "3", 1))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y))


def normalized(residual: str) -> tvm.IRModule:
    """Build a matmul with bias and residual between layer norms: the residual is normalized too, or is not."""

    def norm(x: Any, i: int) -> Any:
        gamma, beta = (relay.var(f"{name}{i}", shape=(32,)) for name in ("gamma", "beta"))
        return relay.nn.layer_norm(x, gamma, beta)

    x, w, b = (relay.var(n, shape=s) for n, s in (("x", (8, 32)), ("w", (32, 32)), ("b", (32,))))
    start = norm(x, 0)
    skipped = start if residual == "post-norm" else x
    y = relay.nn.dense(start, w) + b + skipped
    z = relay.nn.dense(norm(y, 1), w) + (y if residual == "pre-norm" else b)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(z), z))


def test_an_encoder_layer_has_the_contractions_of_tvms_fusion() -> None:
    mod, params = encoder.layer_in_relay(CONFIG)
    with tvm.transform.PassContext(opt_level=3):
        stock = contractions(mod, params, CUDA)
        with enable():
            assert contractions(mod, params, CUDA) == stock
    assert stock.total() == 8


def test_on_a_cpu_all_but_the_one_with_a_heavy_activation() -> None:
    """That holds if TVM computes the products: templates compute such an activation too."""
    mod, params = encoder.layer_in_relay(CONFIG)
    with tvm.transform.PassContext(opt_level=3):
        stock = contractions(mod, params, LLVM)
        with enable(StitchConfig(compute="tvm")):
            ours = contractions(mod, params, LLVM)
    assert (stock & ours).total() == 7 and (ours - stock).total() == 1


def biased(bias: str, blocks: int = 3) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """Convolutions with biases, as an operator of its own or added, whose layouts a CPU changes at level 3."""
    y, params = relay.var("x", shape=(1, 8, 6, 6)), {}
    for i in range(blocks):
        weight, shift = relay.var(f"w{i}", shape=(8, 8, 3, 3)), relay.var(f"b{i}", shape=BIASES[bias])
        params |= {f"w{i}": np.ones((8, 8, 3, 3), F32), f"b{i}": np.ones(BIASES[bias], F32)}
        y = relay.nn.conv2d(y, weight, padding=(1, 1), channels=8, kernel_size=(3, 3))
        y = relay.nn.relu(relay.nn.bias_add(y, shift) if bias == "bias_add" else y + shift)
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(y), y)), params


BIASES = {"add": (8, 1, 1), "bias_add": (8,)}


@pytest.mark.parametrize("target", [CUDA, LLVM])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("bias", BIASES)
def test_biases_cost_no_kernel_after_convolutions(bias: str, level: int, target: str) -> None:
    mod, params = biased(bias)
    with tvm.transform.PassContext(opt_level=level):
        stock = count_kernels(relay.build(mod, target, params=params))
        with enable():
            count = count_kernels(relay.build(mod, target, params=params))
    assert count.total == stock.total and count.compute_intensive == 3


@pytest.mark.parametrize("target", [CUDA, LLVM])
def test_a_broadcast_operand_costs_no_kernel(target: str) -> None:
    x, y, m = (relay.var(n, shape=s) for n, s in (("x", (4, 5, 6)), ("y", (4, 7, 6)), ("m", (4, 1, 7))))
    mod = tvm.IRModule.from_expr(relay.Function([x, y, m], relay.nn.batch_matmul(x, y) + m))
    with enable():
        assert count_kernels(relay.build(mod, target)).total == 1


@pytest.mark.parametrize("target", [CUDA, LLVM])
def test_residuals_cost_no_kernel_after_convolutions(target: str) -> None:
    with tvm.transform.PassContext(opt_level=2):  # 3 may change layouts, by kernels of its own
        stock = count_kernels(relay.build(residual_block(), target))
        with enable():
            count = count_kernels(relay.build(residual_block(), target))
    assert count.total == count.compute_intensive == 4 and stock.total == 4


@pytest.mark.parametrize(
    "build", [residual_block, lambda: normalized("post-norm"), lambda: normalized("pre-norm")]
)
def test_residuals_are_right(build: Any) -> None:
    mod = build()
    rng = np.random.default_rng(5)
    types = {p.name_hint: p.type_annotation for p in mod["main"].params}
    inputs = {n: rng.standard_normal([int(s) for s in t.shape]).astype(F32) for n, t in types.items()}
    lib = build_stitched(mod, tvm.target.Target(LLVM))
    assert mismatches(run(lib, inputs), evaluate(mod, inputs), {F32: (1e-4, 1e-5)}) == []


@pytest.mark.parametrize(
    ("target", "inside"),
    [(CUDA, False), ("cuda -arch=sm_90 -libs=cublas", True), (LLVM, False), ("llvm -libs=cblas", True)],
)
def test_a_librarys_kernels_have_no_epilogues(target: str, inside: bool) -> None:
    """TVM would compute them in a kernel behind the library's. With the softmax they cost none."""
    x, w = relay.var("x", shape=(8, 16)), relay.var("w", shape=(16, 16))
    body = relay.nn.softmax(relay.nn.dense(x, w) * relay.const(0.5))
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(relay.Function([x, w], body)))
    (func,) = stitched_functions(StitchOps(target=target)(mod))
    assert ("multiply" in operators(func)) == inside
