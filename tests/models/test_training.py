# SPDX-License-Identifier: Apache-2.0
"""Graphs of ``relax.transform.Gradient`` and optimizer steps: right on both targets, in fewer kernels than TVM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import build
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.kernels import NAME as LOWERING

LLVM = tvm.target.Target("llvm")
TOLERANCE = {"float32": (2e-5, 2e-5)}


def classifier(emit: Any, x: Any, w: Any, v: Any) -> Any:
    """Compute two layers and a cross-entropy against a softmax."""
    hidden = emit(R.nn.relu(emit(R.matmul(x, w))))
    scores = emit(R.nn.log_softmax(emit(R.matmul(hidden, v))))
    return R.sum(emit(R.multiply(scores, emit(R.nn.softmax(x)))))


def gates(emit: Any, x: Any, w: Any) -> Any:
    weights = emit(R.nn.softmax(emit(R.matmul(emit(R.tanh(x)), emit(R.sigmoid(w))))))
    return R.sum(emit(R.multiply(weights, emit(R.sqrt(emit(R.exp(x)))))))


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "classifier": (classifier, [(8, 16), (16, 16), (16, 16)]),
    "gates": (gates, [(8, 16), (16, 16)]),
}


def backward(name: str) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Return a module whose ``main`` gives a loss and its gradients by the inputs, and inputs."""
    body, shapes = CASES[name]
    both = relax.transform.Gradient("main")(build(body, *((shape, "float32") for shape in shapes)))
    mod = tvm.IRModule({"main": both["main_adjoint"].with_attr("global_symbol", "main")})
    rng = np.random.default_rng(len(shapes))
    return mod, [rng.standard_normal(shape).astype("float32") for shape in shapes]


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    return [each for item in value for each in flat(item)]


@pytest.mark.parametrize("name", CASES)
def test_gradients_on_llvm(name: str) -> None:
    mod, inputs = backward(name)
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM)), tvm.cpu())
    found = flat(vm["main"](*map(tvm.runtime.tensor, inputs)))
    assert mismatches(found, evaluate(mod, inputs), TOLERANCE) == []


@pytest.mark.parametrize("name", CASES)
def test_gradients_in_the_emulator(name: str) -> None:
    mod, inputs = backward(name)
    target = emulated_target()
    done = run_cuda(
        mod, inputs, target=target, relax_pipeline=pipeline(target), tir_pipeline=LOWERING
    ).check()
    assert mismatches(done.outputs, evaluate(mod, inputs), TOLERANCE) == []


@pytest.mark.parametrize(("target", "most"), [(LLVM, 6), (emulated_target(), 3)], ids=["llvm", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_gradients(name: str, target: tvm.target.Target, most: int) -> None:
    mod, _ = backward(name)
    stock, own = count_kernels(mod, target), count_kernels(mod, target, pipeline(target))
    assert own.compute_intensive == stock.compute_intensive
    assert own.memory_intensive <= most < stock.memory_intensive, own.names


SIZES = [(16, 33), (33,), (33, 5)]


def adam(emit: Any, *tensors: Any) -> list[Any]:
    """Build a step of Adam on tensors of four kinds in turn: a parameter, its gradient, and both moments."""

    def mixed(old: Any, new: Any, share: float) -> Any:
        kept = emit(R.multiply(old, relax.const(share, "float32")))
        return emit(R.add(kept, emit(R.multiply(new, relax.const(1 - share, "float32")))))

    results = []
    for i in range(0, len(tensors), 4):
        parameter, gradient, first, second = tensors[i : i + 4]
        first = mixed(first, gradient, 0.9)
        second = mixed(second, emit(R.multiply(gradient, gradient)), 0.999)
        root = emit(R.add(emit(R.sqrt(second)), relax.const(1e-8, "float32")))
        step = emit(R.multiply(emit(R.divide(first, root)), relax.const(0.01, "float32")))
        results += [emit(R.subtract(parameter, step)), first, second]
    return results


def _adam() -> tuple[tvm.IRModule, list[np.ndarray]]:
    shapes = [shape for shape in SIZES for _ in range(4)]
    rng = np.random.default_rng(0)
    return build(adam, *((shape, "float32") for shape in shapes)), [
        rng.uniform(0.1, 1, shape).astype("float32") for shape in shapes
    ]


@pytest.mark.parametrize("target", [LLVM, emulated_target()], ids=["llvm", "cuda"])
def test_a_step_of_adam_is_fewer_kernels(target: tvm.target.Target) -> None:
    mod, _ = _adam()
    own = count_kernels(mod, target, pipeline(target))
    assert own.total < count_kernels(mod, target).total and own.total <= len(SIZES), own.names


def test_a_step_of_adam_is_right() -> None:
    mod, inputs = _adam()
    wanted = evaluate(mod, inputs)
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM)), tvm.cpu())
    assert mismatches(flat(vm["main"](*map(tvm.runtime.tensor, inputs))), wanted, TOLERANCE) == []
    target = emulated_target()
    done = run_cuda(
        mod, inputs, target=target, relax_pipeline=pipeline(target), tir_pipeline=LOWERING
    ).check()
    assert mismatches(done.outputs, wanted, TOLERANCE) == []
