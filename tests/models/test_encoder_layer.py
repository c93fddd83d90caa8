# SPDX-License-Identifier: Apache-2.0
"""An encoder layer through the PyTorch importer: kernels launched, and one artifact for all sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from cuda_emulator import Lowered, lower, run_lowered
from stitch_testing.random.graphs import emulated_target, stitched_pipeline
from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING
from tvm_stitch.testing.workloads import cases

pytest.importorskip("torch")
encoder = pytest.importorskip("tvm_stitch.testing.workloads.encoder")

HIDDEN, HEADS, FFN = 24, 3, 40
TOLERANCE = {"float32": (2e-5, 2e-5)}
#: (batch, sequence): 1, primes and powers of two.
SIZES = ((1, 1), (1, 2), (2, 1), (1, 13), (3, 5), (2, 8), (5, 7), (4, 16), (1, 31), (7, 3), (8, 32), (1, 128))


def draw(batch: int, sequence: int) -> list[np.ndarray]:
    rng = np.random.default_rng([batch, sequence])
    mask = np.where(rng.random((batch, 1, 1, sequence)) < 0.2, np.float32(-1e4), np.float32(0))
    mask[..., 0] = 0
    return [rng.standard_normal((batch, sequence, HIDDEN), dtype=np.float32), mask]


@pytest.fixture(scope="module")
def symbolic() -> tvm.IRModule:
    return encoder.encoder_layer(2, 5, HIDDEN, HEADS, FFN, symbolic=True, masked=True)[0]


@pytest.fixture(scope="module")
def emulated(symbolic: tvm.IRModule) -> Lowered:
    return lower(symbolic, emulated_target(), stitched_pipeline("emulated-cuda"), LOWERING)


@pytest.mark.parametrize("target", ["llvm", "emulated-cuda"])
def test_kernels_launched(target: str) -> None:
    case = cases.encoder_layer(2, 16, 48, 4, 96)
    made = emulated_target() if target == "emulated-cuda" else tvm.target.Target("llvm")
    counted = count_kernels(case.build(), made, stitched_pipeline(target))
    joined = 2 if target == "emulated-cuda" else 0  # queries, keys and values are one product
    assert counted.compute_intensive == case.matmuls - joined
    assert counted.memory_intensive <= case.kernels, counted.names
    assert counted.memory_intensive < count_kernels(case.build(), made).memory_intensive


def test_symbolic_layer_is_right_at_twelve_sizes_on_llvm(symbolic: tvm.IRModule) -> None:
    executable = tvm.compile(symbolic, tvm.target.Target("llvm"), relax_pipeline=stitched_pipeline("llvm"))
    vm = relax.VirtualMachine(executable, tvm.cpu())
    for size in SIZES:
        inputs = draw(*size)
        output = vm["main"](*map(tvm.runtime.tensor, inputs)).numpy()
        assert mismatches([output], evaluate(symbolic, inputs), TOLERANCE) == [], size


@pytest.mark.parametrize("size", [(1, 1), (2, 8), (3, 5), (1, 31)], ids=str)
def test_symbolic_layer_is_right_in_the_emulator(
    symbolic: tvm.IRModule, emulated: Lowered, size: tuple[int, int]
) -> None:
    inputs = draw(*size)
    done = run_lowered(emulated, inputs).check()
    assert mismatches(done.outputs, evaluate(symbolic, inputs), TOLERANCE) == []
