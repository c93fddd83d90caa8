# SPDX-License-Identifier: Apache-2.0
"""Named workloads, an encoder layer and random graphs through relay.build with stitching: kernels and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from cuda_emulator import run_relay_cuda
from stitch_testing.random.growth import LEVELS
from stitch_testing.reference.values import mismatches
from stitch_testing.relay import cases, encoder
from stitch_testing.relay.count import count_kernels
from stitch_testing.relay.random_graphs import check_graph_cuda_emulated, check_graph_llvm, random_graph
from stitch_testing.relay.reference import evaluate
from stitch_testing.relay.run import Params, build_stitched, build_stock, run
from tvm_stitch import StitchConfig
from tvm_stitch.relay import enable
from tvm_stitch.testing.workloads.bert import BertConfig
from tvm_stitch.testing.workloads.case import Case

LLVM = tvm.target.Target("llvm")
CUDA = tvm.target.Target("cuda -arch=sm_90", host="llvm")
ROWS, GRID = cases.cases("test"), cases.grid_cases("test")

LLVM_KERNELS = {"layer_norm_backward": 2, "cross_entropy": 2, "figure7": 2, "clip_adam_tensors": 6}
"""Cases whose rows do not stay in one task. A CPU kernel ends at a value that others wait for."""


@pytest.mark.parametrize("case", [*ROWS, *GRID], ids=lambda case: case.name)
def test_workloads_on_llvm(case: Case) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(2))
    lib = build_stitched(mod, LLVM)
    assert mismatches(run(lib, inputs), evaluate(mod, inputs), case.tolerance) == []
    count = count_kernels(lib)
    most = case.kernels if case in ROWS else LLVM_KERNELS.get(case.name, 1)
    assert count.memory_intensive <= most and count.compute_intensive == 0


def with_barriers(mod: tvm.IRModule, target: Any, params: Params = None) -> Any:
    with enable(StitchConfig(plain_launch_barriers=True)):
        return relay.build(mod, target, params=dict(params or {}))


@pytest.mark.parametrize("barriers", [False, True], ids=["phases", "barriers"])
@pytest.mark.parametrize("case", [*ROWS, *GRID], ids=lambda case: case.name)
def test_workloads_on_cuda_emulated(case: Case, barriers: bool) -> None:
    """Each has one launch. If values cross blocks, that holds only if barriers in plain launches are asked for."""
    if barriers and case in ROWS:
        pytest.skip("its rows stay in a block")
    mod, inputs = case.build(), case.inputs(np.random.default_rng(3))
    done = run_relay_cuda(mod, inputs, target=CUDA, build=with_barriers if barriers else build_stitched)
    assert done.reports == []
    assert mismatches(done.outputs, evaluate(mod, inputs), case.tolerance) == []
    if barriers or case in ROWS:
        assert len(done.launches) == 1
    else:
        assert len(done.launches) <= 8


@pytest.mark.parametrize(("target", "launches"), [(LLVM, 13), (CUDA, 13)], ids=["llvm", "cuda"])
def test_an_encoder_layer_takes_few_launches(target: Any, launches: int) -> None:
    """The activation is computed in the kernel of its matmul, on a CPU by a template."""
    config = BertConfig(layers=1, hidden=64, heads=4, sequence=16, ffn=128, vocabulary=64)
    mod, params = encoder.layer_in_relay(config)
    with enable() as found, tvm.transform.PassContext(opt_level=3):
        count = count_kernels(relay.build(mod, target, params=params))
    assert (count.total, count.compute_intensive) == (launches, 8) and not found.declined


def test_an_encoder_layer_is_right() -> None:
    config = BertConfig(layers=1, hidden=64, heads=4, sequence=16, ffn=128, vocabulary=64)
    mod, params = encoder.layer_in_relay(config)
    rng = np.random.default_rng(4)
    main = relay.transform.InferType()(mod)["main"]
    inputs = [
        rng.standard_normal([int(s) for s in p.checked_type.shape]).astype(p.checked_type.dtype)
        for p in main.params
        if p.name_hint not in params
    ]
    expected = evaluate(mod, inputs, params)
    assert (
        mismatches(run(build_stitched(mod, LLVM, params), inputs), expected, {"float32": (1e-5, 1e-5)}) == []
    )
    done = run_relay_cuda(mod, inputs, params, CUDA, build=build_stitched)
    assert done.reports == [] and len(done.launches) == 13
    assert mismatches(done.outputs, expected, {"float32": (1e-5, 1e-5)}) == []


@pytest.mark.parametrize("target", [LLVM, CUDA], ids=["llvm", "cuda"])
def test_random_graphs_take_no_more_kernels_than_tvm(target: Any) -> None:
    counted = 0
    for seed in range(8):
        graph = random_graph(seed, 2_000, LEVELS[seed % 3])
        try:
            stock = count_kernels(build_stock(graph.mod, target))
        except Exception:  # TVM's kernels do not compile
            continue
        count = count_kernels(build_stitched(graph.mod, target))
        assert count.total <= stock.total and count.memory_intensive <= stock.memory_intensive, seed
        counted += 1
    assert counted


@pytest.mark.parametrize("chunk", range(6))
def test_random_graphs_on_llvm(chunk: int) -> None:
    for seed in range(10 * chunk, 10 * chunk + 10):
        result = check_graph_llvm(random_graph(seed, 4_000, LEVELS[seed % 3]), build_stitched)
        assert result.ok, str(result)


@pytest.mark.parametrize("chunk", range(6))
def test_random_graphs_on_cuda_emulated(chunk: int) -> None:
    for seed in range(1000 + 5 * chunk, 1005 + 5 * chunk):
        result = check_graph_cuda_emulated(random_graph(seed, 2_000, LEVELS[seed % 3]), build_stitched)
        assert result.ok, str(result)
