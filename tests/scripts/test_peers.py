# SPDX-License-Identifier: Apache-2.0
"""The workloads as written for PyTorch compute what the Relax ones compute."""

from __future__ import annotations

import numpy as np
import pytest

from stitch_testing.reference.relax import evaluate, mismatches
from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

torch = pytest.importorskip("torch")

import _peers as peers  # noqa: E402


@pytest.mark.parametrize("case", cases.cases("test"), ids=lambda case: case.name)
def test_torch_function_equals_the_case(case: Case) -> None:
    inputs = case.inputs(np.random.default_rng(4))
    with torch.no_grad():
        result = peers.torch_function(case.name, case.sizes)(*map(peers.to_torch, inputs))
    outputs = [peers.from_torch(t) for t in (result if isinstance(result, tuple) else (result,))]
    assert [str(out.dtype) for out in outputs] == [spec.dtype for spec in case.results]
    assert mismatches(outputs, evaluate(case.build(), inputs), case.tolerance) == []


def test_every_case_but_the_layer_is_written_once_for_all_backends() -> None:
    assert set(peers.FUNCTIONS) | {"encoder_layer"} == {case.name for case in cases.cases("test")}
    with pytest.raises(KeyError):
        peers.torch_function("no_such_case", {})


def test_bfloat16_survives_the_way_to_torch_and_back() -> None:
    import ml_dtypes

    x = np.array([1.5, -2.25, np.inf], ml_dtypes.bfloat16)
    assert np.array_equal(peers.from_torch(peers.to_torch(x)), x)
