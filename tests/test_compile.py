# SPDX-License-Identifier: Apache-2.0
"""tvm_stitch.compile and the package's face."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.reference.relax import evaluate, mismatches
from tests.graph.helpers import build, draw
from tvm_stitch import StitchConfig
from tvm_stitch.relax import StitchError
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases
from tvm_stitch.testing.workloads.examples import Attention

F32 = "float32"


def call(executable: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [t.numpy() for t in tensors]


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: case.name)
def test_cases_on_llvm(case: Case) -> None:
    mod, inputs = case.build(), case.inputs(np.random.default_rng(3))
    outputs = call(tvm_stitch.compile(mod), inputs)
    assert mismatches(outputs, evaluate(mod, inputs), case.tolerance) == []
    assert [(o.shape, str(o.dtype)) for o in outputs] == [(s.shape, s.dtype) for s in case.results]


def test_cuda_needs_no_gpu_to_compile() -> None:
    executable = tvm_stitch.compile(cases("test")[0].build(), "cuda")
    assert "__global__" in "".join(m.inspect_source() for m in sources(executable.mod))


def sources(module: Any) -> list[Any]:
    """Return the CUDA modules imported anywhere below a module."""
    found = [module] if module.kind == "cuda" else []
    for inner in module.imports:
        found += sources(inner)
    return found


def test_options_are_passed_on() -> None:
    mod = build(lambda emit, x, w: R.add(emit(R.exp(x)), w), ((4, 8), F32), ((8,), F32))
    x = draw([((4, 8), F32)])[0]
    w = np.ones(8, F32)
    executable = tvm_stitch.compile(mod, "llvm", StitchConfig(max_operators=1), exec_mode="compiled")
    np.testing.assert_allclose(call(executable, [x, w])[0], np.exp(x) + 1, rtol=1e-5)


def test_the_module_is_left_as_it_was() -> None:
    mod = cases("test")[0].build()
    before = mod.script()
    tvm_stitch.compile(mod)
    assert mod.script() == before


def test_strict_raises_where_something_memory_intensive_is_left() -> None:
    mod = build(lambda emit, x: R.argsort(emit(R.exp(x)), 1), ((4, 9), F32))
    with pytest.raises(StitchError):
        tvm_stitch.compile(mod, "llvm", StitchConfig(strict=True))
    x = draw([((4, 9), F32)])
    np.testing.assert_array_equal(call(tvm_stitch.compile(mod), x)[0], x[0].argsort(1))


def test_strict_takes_what_is_stitched_whole() -> None:
    for case in cases("test")[:-1]:
        tvm_stitch.compile(case.build(), "llvm", StitchConfig(strict=True))


@pytest.mark.usefixtures("children_without_torch")
def test_subpackages_load_on_first_use() -> None:
    """``import tvm_stitch`` alone brings in neither Relax passes nor testing tools."""
    script = (
        "import sys, tvm_stitch\n"
        "assert 'tvm_stitch.relax' not in sys.modules and 'tvm_stitch.testing' not in sys.modules\n"
        "assert tvm_stitch.relax.pipeline and tvm_stitch.rules.StitchRule\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_unknown_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tvm_stitch.nothing


@pytest.mark.parametrize("function", [tvm_stitch.compile, tvm_stitch.explain])
def test_what_is_no_module_is_refused_with_what_makes_one(function: Any) -> None:
    mod = build(lambda emit, x: R.exp(x), ((4, 8), F32))
    for given, message in (
        (None, "not NoneType: an importer of tvm.relax.frontend"),
        (mod["main"], r"relax.expr.Function: tvm.IRModule.from_expr\(function\) makes one"),
        (relax.frontend.nn.Linear(4, 4), "its export_tvm gives one"),
    ):
        with pytest.raises(TypeError, match=f"a model must be a Relax IRModule, .*{message}"):
            function(given)


@pytest.mark.parametrize("params", [{"main": {"w": tvm.runtime.tensor(np.ones(3))}}, {"w": np.ones(3)}, [1]])
def test_params_that_are_none(params: Any) -> None:
    with pytest.raises(TypeError, match=r"params must map names to .* tensors; .*BindParams\(function"):
        tvm_stitch.compile(Attention, "llvm", params=params)
