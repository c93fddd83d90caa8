# SPDX-License-Identifier: Apache-2.0
"""Functions of tasks stand in LLVM's code once, whatever loops call them, and know no more of pointers than before."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch import compat
from tvm_stitch.relax.lowering.argument_checks import SCOPE
from tvm_stitch.relax.lowering.kernels import NAME
from tvm_stitch.relax.lowering.separate_tasks import TASK_ATTR, with_tasks_apart
from tvm_stitch.relax.pipeline import pipeline

F32 = "float32"
LLVM = tvm.target.Target("llvm")


def silu_of_any_rows() -> tvm.IRModule:
    n = compat.tir.Var("n", "int64")
    return build(lambda e, x: [e(R.nn.silu(x))], ((n, 48), F32))


def kernels() -> tvm.IRModule:
    """Return the lowered functions: the kernel, and the function of its tasks."""
    made = pipeline(LLVM)(silu_of_any_rows())
    return tvm.IRModule(
        {gvar: func for gvar, func in made.functions_items() if isinstance(func, compat.tir.PrimFunc)}
    )


def llvm_of(mod: tvm.IRModule, tir_pipeline: str) -> str:
    return str(tvm.tirx.build(mod, LLVM, pipeline=tir_pipeline).inspect_source("ll"))


def test_a_task_is_not_inlined() -> None:
    source = llvm_of(kernels(), NAME)
    (defined,) = re.findall(r"define [^\n]*@\w+_task_compute_\([^\n]*", source)
    assert "noalias" not in defined
    assert len(re.findall(r"call [^\n]*@\w+_task_compute_\(", source)) == 2
    assert "_task_compute_" not in llvm_of(kernels(), "default")


def test_the_scope_holds_all_but_the_tensors() -> None:
    default, _, _ = compat.tir.get_tir_pipeline("default")
    before = default(compat.tir.transform.BindTarget(LLVM.with_host(LLVM))(kernels()))
    after = with_tasks_apart(before)
    changed = [gvar for gvar, func in before.functions_items() if not after[gvar].same_as(func)]
    (name,) = (gvar.name_hint for gvar in changed)
    assert name.endswith("_task") and TASK_ATTR in after[name].attrs
    steps = compat.elements(after[name].body.seq)
    kinds = [compat.kind(step) for step in steps]
    assert kinds == ["DeclBuffer", "DeclBuffer", "AttrStmt", "Return"]
    assert steps[2].attr_key == SCOPE


def test_what_has_no_tasks_stays() -> None:
    mod = tvm.IRModule(
        {gvar: func for gvar, func in kernels().functions_items() if "target" in (func.attrs or {})}
    )
    assert with_tasks_apart(mod).same_as(mod)


@pytest.mark.parametrize("rows", [0, 1, 3, 5000])
def test_either_loop_computes_the_same(rows: int) -> None:
    vm = tvm.relax.VirtualMachine(tvm_stitch.compile(silu_of_any_rows(), LLVM), tvm.cpu())
    x = np.random.default_rng(rows).standard_normal((rows, 48)).astype(F32)
    found: Any = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, x / (1 + np.exp(-x.astype("float64"))), rtol=1e-5, atol=1e-6)
