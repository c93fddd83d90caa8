# SPDX-License-Identifier: Apache-2.0
"""The workloads with reductions across rows, as written for PyTorch, compute what the Relax ones compute."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.testing.workloads.grid_case import GridCase
from tvm_stitch.testing.workloads.grid_cases import grid_cases

torch = pytest.importorskip("torch")

import _grid_peers as grid_peers  # noqa: E402
import _peers as peers  # noqa: E402

CASES = grid_cases("test")


def outputs_of(function: object, inputs: list[np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        result = function(*map(peers.to_torch, inputs))  # type: ignore[operator]
    return [peers.from_torch(t) for t in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_torch_function_equals_the_case(case: GridCase) -> None:
    inputs = case.inputs(np.random.default_rng(4))
    outputs = outputs_of(grid_peers.torch_function(case.name, case.sizes), inputs)
    assert [(out.shape, str(out.dtype)) for out in outputs] == [(s.shape, s.dtype) for s in case.results]
    assert mismatches(outputs, evaluate(case.build(), inputs), case.tolerance) == []


def test_the_common_form_of_many_tensors_equals_the_case_too() -> None:
    """JAX takes the form that PyTorch has a better one for."""
    (case,) = (case for case in CASES if case.name == "clip_adam_tensors")
    inputs, backend = case.inputs(np.random.default_rng(5)), peers.TorchBackend()
    outputs = outputs_of(lambda *args: grid_peers.FUNCTIONS[case.name](backend, case.sizes, *args), inputs)
    assert mismatches(outputs, evaluate(case.build(), inputs), case.tolerance) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_jax_function_equals_the_case(case: GridCase) -> None:
    jax = pytest.importorskip("jax")
    inputs = case.inputs(np.random.default_rng(6))
    result = jax.jit(grid_peers.jax_function(case.name, case.sizes))(*inputs)
    outputs = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
    assert mismatches(outputs, evaluate(case.build(), inputs), case.tolerance) == []


def test_every_case_is_written() -> None:
    assert set(grid_peers.FUNCTIONS) == set(grid_peers.FOR_TORCH) == {case.name for case in CASES}
    with pytest.raises(KeyError):
        grid_peers.torch_function("no_such_case", {})
