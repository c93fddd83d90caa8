# SPDX-License-Identifier: Apache-2.0
"""Gathers of values that the same kernel computes: in the emulator and on CPUs, against float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from cuda_emulator import run_cuda
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference import relax as reference
from tests.graph.helpers import Spec, build, stitch_functions, symbol

F32, F16 = "float32", "float16"
Body = Callable[..., Any]
TOLERANCE = {F32: (2e-5, 2e-5), F16: (4e-3, 4e-3)}


def nll(ignore: int = -100, axis: int = -1) -> Body:
    def body(emit: Any, x: Any, *rest: Any) -> Any:
        return R.nn.nll_loss(emit(R.nn.log_softmax(x, axis)), *rest, reduction="none", ignore_index=ignore)

    return body


def per_row(emit: Any, x: Any, labels: Any) -> Any:
    return R.gather_elements(emit(R.nn.log_softmax(x, -1)), labels, axis=1)


def margin(emit: Any, x: Any, a: Any, b: Any) -> list[Any]:
    """Build two gathers of one tensor, at labels of the same shape."""
    p = emit(R.nn.softmax(x, -1))
    first = emit(R.gather_elements(p, a, axis=1))
    return [R.subtract(first, emit(R.gather_elements(p, b, axis=1)))]


def computed_labels(emit: Any, x: Any, labels: Any) -> Any:
    p = emit(R.nn.softmax(x, -1))
    return R.gather_elements(p, emit(R.add(labels, relax.const(1, "int64"))), axis=1)


def both(emit: Any, x: Any, labels: Any) -> list[Any]:
    """Subtract the gathered values from the row that they are from."""
    p = emit(R.nn.log_softmax(x, -1))
    return [R.subtract(p, emit(R.gather_elements(p, labels, axis=1)))]


def clipped(emit: Any, x: Any, labels: Any) -> Any:
    return R.take(emit(R.nn.softmax(x, -1)), labels, axis=1, mode="clip")


CASES: dict[str, tuple[Body, Sequence[Spec]]] = {
    "cross entropy": (nll(), [((64, 1000), F32), ((64,), "int64")]),
    "int32 labels, weights": (nll(), [((20, 37), F32), ((20,), "int32"), ((37,), F32)]),
    "ignored far away": (nll(-2_000_000_000), [((40, 100), F32), ((40,), "int64"), ((100,), F32)]),
    "classes in the middle": (nll(axis=1), [((4, 10, 33), F32), ((4, 33), "int64")]),
    "half logits": (nll(), [((30, 50), F16), ((30,), "int64")]),
    "long rows": (nll(), [((3, 30000), F32), ((3,), "int64")]),
    "several labels a row": (per_row, [((64, 300), F32), ((64, 5), "int64")]),
    "as many labels as classes": (per_row, [((9, 24), F32), ((9, 24), "int32")]),
    "take along axis 1": (
        lambda emit, x, i: R.take(emit(R.nn.log_softmax(x, -1)), i, axis=1), [((12, 40), F32), ((7,), "int32")],
    ),
    "clipped": (clipped, [((12, 40), F32), ((7,), "int64")]),
    "gather_nd": (
        lambda emit, x, i: R.gather_nd(emit(R.nn.log_softmax(x, -1)), i, batch_dims=1),
        [((16, 40), F32), ((16, 1), "int64")],
    ),
    "a margin": (margin, [((16, 40), F32), ((16, 1), "int64"), ((16, 1), "int64")]),
    "labels that are computed": (computed_labels, [((16, 40), F32), ((16, 1), "int64")]),
    "rows that use what they gather": (both, [((16, 200), F32), ((16, 1), "int64")]),
    "without a reduction": (
        lambda emit, x, i: R.multiply(emit(R.take(emit(R.exp(x)), i, axis=0)), relax.const(2.0, F32)),
        [((6, 20), F32), ((11,), "int64")],
    ),
}  # fmt: skip


def inputs_of(name: str, specs: Sequence[Spec], rows: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(len(name))
    shapes = [[rows if not isinstance(e, int) else e for e in shape] for shape, _ in specs]
    classes = 6 if name == "without a reduction" else shapes[0][1]
    found = []
    for shape, (_, dtype) in zip(shapes, specs):
        if dtype.startswith("int"):
            labels = rng.integers(0, classes - 1, shape).astype(dtype)
            flat = labels.reshape(-1)
            flat[:2] = 0, classes - 2
            if name == "clipped":
                flat[:2] = -5, classes + 9
            found.append(labels)
        else:
            found.append(rng.normal(0, 3, shape).astype(dtype))
    ignored = {"ignored far away": -2_000_000_000, "cross entropy": -100, "int32 labels, weights": -100}
    if name in ignored:
        found[1][1::7] = ignored[name]
    return found


def check(outputs: Sequence[np.ndarray], mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> None:
    assert reference.mismatches(outputs, reference.evaluate(mod, inputs), TOLERANCE) == []


@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str) -> None:
    """One launch, no faults: nothing is read out of bounds, whatever ignored labels say."""
    body, specs = CASES[name]
    mod, inputs = build(body, *specs), inputs_of(name, specs)
    target = emulated_target()
    done = run_cuda(mod, inputs, target=target, relax_pipeline=tvm_stitch.relax.pipeline(target)).check()
    assert len(done.launches) == 1, [launch.name for launch in done.launches]
    check(list(done.outputs), mod, inputs)


def run_cpu(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
    made = machine["main"](*[tvm.runtime.tensor(x) for x in inputs])
    return [made.numpy()] if hasattr(made, "numpy") else [m.numpy() for m in made]


@pytest.mark.parametrize("name", CASES)
def test_cpu(name: str) -> None:
    body, specs = CASES[name]
    mod, inputs = build(body, *specs), inputs_of(name, specs)
    assert len(stitch_functions(mod)) == 1
    check(run_cpu(mod, inputs), mod, inputs)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_symbolic_rows(rows: int) -> None:
    n = symbol()
    specs = [((n, 50), F32), ((n,), "int64")]
    mod = build(nll(), *specs)
    inputs = [x[:rows] for x in inputs_of("symbolic", specs, 5)]
    target = emulated_target()
    done = run_cuda(mod, inputs, target=target, relax_pipeline=tvm_stitch.relax.pipeline(target)).check()
    check(list(done.outputs), mod, inputs)
    check(run_cpu(mod, inputs), mod, inputs)


@pytest.mark.parametrize("shape", [(64, 1000), (300, 30)])
def test_mean_loss_is_one_launch(shape: tuple[int, int]) -> None:
    """The mean crosses rows: it is finished behind a grid barrier."""

    def body(emit: Any, x: Any, labels: Any, weights: Any) -> Any:
        return R.nn.nll_loss(emit(R.nn.log_softmax(x, -1)), labels, weights, reduction="mean")

    specs = [(shape, F32), ((shape[0],), "int64"), ((shape[1],), F32)]
    mod, inputs = build(body, *specs), inputs_of("cross entropy", specs)
    inputs[2] = np.abs(inputs[2]) + np.float32(0.1)
    target = emulated_target()
    done = run_cuda(mod, inputs, target=target, relax_pipeline=tvm_stitch.relax.pipeline(target)).check()
    assert len(done.launches) == 1, [launch.name for launch in done.launches]
    check(list(done.outputs), mod, inputs)
