# SPDX-License-Identifier: Apache-2.0
"""Branches: each is a function that is stitched, and results may differ in size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.relax.loops.modules import run
from tests.relax.loops.test_loop import made
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.loops.branches import UnequalBranches, choice

CONDITION = relax.TensorType([], "bool")


def _module(yes: Callable[[Any], list[Any]], no: Callable[[Any], list[Any]]) -> tvm.IRModule:
    condition = relax.Var("condition", CONDITION)

    def body(builder: relax.BlockBuilder, x: Any, _: Any) -> list[Any]:
        found = choice(builder, "if", condition, [x], lambda own: yes(own[0]), lambda own: no(own[0]))
        return [builder.emit(R.add(each, each)) for each in found]

    return made(body, condition)


def _softmax_of(x: Any) -> list[Any]:
    return [R.nn.softmax(R.multiply(x, x))]


def test_either_branch() -> None:
    mod = _module(_softmax_of, lambda x: [R.exp(x)])
    executable = tvm_stitch.compile(mod, "llvm")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    power = np.exp(x.astype("float64") ** 2)
    for value, wanted in ((True, power / power.sum(1, keepdims=True)), (False, np.exp(x))):
        (found,) = run(executable, [tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(value))])
        assert np.allclose(found.numpy(), 2 * wanted, rtol=1e-5)
    assert count_kernels(mod, "llvm", pipeline(tvm.target.Target("llvm"))).total == 2


def test_results_of_different_sizes() -> None:
    executable = tvm_stitch.compile(_module(lambda x: [R.concat([x, x])], lambda x: [R.exp(x)]), "llvm")
    x = np.ones((3, 4), "float32")
    for value, rows in ((True, 6), (False, 3)):
        (found,) = run(executable, [tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(value))])
        assert found.shape == (rows, 4)


def test_branches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnequalBranches, match=r"result 0 of if is float32 .* in one branch and float16 "):
        _module(lambda x: [x], lambda x: [R.astype(x, "float16")])
    with pytest.raises(UnequalBranches, match="equal numbers of axes"):
        _module(lambda x: [x], lambda x: [R.sum(x, 1)])
    with pytest.raises(UnequalBranches, match="return 2 and 1 results"):
        _module(lambda x: [x, x], lambda x: [x])
