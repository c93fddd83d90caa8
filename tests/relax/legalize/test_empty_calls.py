# SPDX-License-Identifier: Apache-2.0
"""Operators over tensors without elements compile, and have the values of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.relax import pipeline

F32 = "float32"
TARGETS = {
    "llvm": tvm.target.Target("llvm"),
    "cuda": tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm"),
}
ONES = relax.const(np.ones(3, F32))
NONE = relax.const(np.ones(0, F32))
WITHOUT_ELEMENTS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "layer norm": (lambda x: R.nn.layer_norm(x, NONE, NONE, [1]), (3, 0)),
    "rms norm": (lambda x: R.nn.rms_norm(x, NONE, [1]), (3, 0)),
    "group norm": (lambda x: R.nn.group_norm(x, ONES, ONES, 3, 1, [2]), (2, 3, 0)),
    "instance norm": (lambda x: R.nn.instance_norm(x, ONES, ONES, 1, [2]), (2, 3, 0)),
    "cumulative sum": (lambda x: R.cumsum(x, 1), (3, 0)),
    "sort": (lambda x: R.sort(x, 1), (3, 0)),
    "greatest": (lambda x: R.topk(x, 0, 1), (3, 0)),
}


def compiled(body: Any, shape: Any, target: str) -> Any:
    mod = build(body, (shape, F32))
    return tvm.compile(mod, TARGETS[target], relax_pipeline=pipeline(TARGETS[target]))


def run(executable: Any, x: np.ndarray) -> list[np.ndarray]:
    made = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [made.numpy()] if isinstance(made, tvm.runtime.Tensor) else [part.numpy() for part in made]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_results_without_elements(name: str, target: str) -> None:
    operator, shape = WITHOUT_ELEMENTS[name]

    def body(emit: Any, x: Any) -> list[Any]:
        made = emit(operator(x))
        fields = len(made.ty.fields) if isinstance(made.ty, relax.TupleType) else 0
        return [relax.TupleGetItem(made, i) for i in range(fields)] if fields else [made]

    executable = compiled(body, shape, target)
    if target == "llvm":
        assert all(part.size == 0 for part in run(executable, np.ones(shape, F32)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", [R.mean, R.variance, R.std])
def test_means_of_no_elements_are_nan(operator: Any, target: str) -> None:
    executable = compiled(lambda emit, x: [R.add(emit(operator(x, [1])), ONES)], (3, 0), target)
    if target == "llvm":
        (made,) = run(executable, np.ones((3, 0), F32))
        assert made.shape == (3,) and np.isnan(made).all()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_slice_that_is_always_empty(rows: int) -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        part = emit(R.strided_slice(x, [1], [5], [4], assume_inbound=False))
        return [R.variance(part, [1])]

    (made,) = run(compiled(body, (symbol("n"), 4), "llvm"), np.ones((rows, 4), F32))
    assert made.shape == (rows,) and np.isnan(made).all()


def test_a_batch_norm_of_no_images_keeps_its_statistics() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        made = emit(R.nn.batch_norm(x, ONES, ONES, ONES, ONES, 1, training=False))
        return [relax.TupleGetItem(made, i) for i in range(3)]

    y, mean, variance = run(compiled(body, (0, 3, 4), "llvm"), np.ones((0, 3, 4), F32))
    assert y.shape == (0, 3, 4) and (mean == 1).all() and (variance == 1).all()
