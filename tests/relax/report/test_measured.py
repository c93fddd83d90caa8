# SPDX-License-Identifier: Apache-2.0
"""Measuring: every kernel of a run gets its own time, also if others run at the same time."""

from __future__ import annotations

import json
import platform
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, symbol
from tvm_stitch import StitchConfig
from tvm_stitch.relax.report import measured
from tvm_stitch.relax.report.measured import _in_order, check_runs_here
from tvm_stitch.target import resolve_target

F32 = "float32"


def head(rows: Any = 16) -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(emit(R.exp(x)), w))
        z = emit(R.subtract(y, emit(R.max(y, -1, True))))
        return [emit(R.divide(z, emit(R.sum(z, -1, True))))]

    return build(body, ((rows, 24), F32), ((24, 32), F32))


def test_every_kernel_has_a_time() -> None:
    report = tvm_stitch.explain(head())
    found = report.measure(repeats=3)
    model = found.completed()
    assert model.kernels and all(k.measured for k in model.kernels)
    assert model.stock is not None and len(model.stock_kernels) == model.stock.kernels
    for kernel in [*model.kernels, *model.stock_kernels]:
        assert kernel.measured is not None
        assert 0 < kernel.measured.low <= kernel.measured.median <= kernel.measured.high
    assert {k.kind for k in model.stock_kernels} == {"compute", "tvm"}
    assert model.stitched.measured is not None and model.stock.measured is not None
    assert model.measured_on == "this CPU, 3 calls"
    assert "measured on this CPU" in str(found) and json.dumps(found.to_dict())
    assert not report.completed().measured_on, "the report that was measured stays as it was"


def test_symbolic_shapes_take_inputs() -> None:
    report = tvm_stitch.explain(head(symbol("n")))
    with pytest.raises(ValueError, match=r"sizes are symbolic, x0: .*: give inputs, as measure\(inputs="):
        report.measure()
    arrays = [np.ones((5, 24), F32), np.ones((24, 32), F32)]
    model = report.measure(arrays, repeats=1).completed()
    assert all(k.measured for k in model.kernels) and all(k.measured for k in model.stock_kernels)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (np.ones((16, 25), F32), r"x0: float32\[16, 24\] is given as float32\[16, 25\]"),
        (np.ones((16, 24)), r"x0: float32\[16, 24\] is given as float64\[16, 24\]"),
        ([[1.0] * 24] * 16, r"x0: float32\[16, 24\] is given as list"),
    ],
)
def test_inputs_of_another_shape_or_type(first: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        tvm_stitch.explain(head()).measure([first, np.ones((24, 32), F32)])


def test_a_kernel_is_found_by_its_place() -> None:
    assert _in_order(["a", "b", "a"], [("a", 1.0), ("b", 2.0), ("a", 3.0)]) == [1, 2, 3]
    assert _in_order(["a", "b"], [("", 1.0), ("b", 2.0)]) == [1, 2], "called with symbolic sizes"


def test_where_a_branch_does_not_run_its_kernels_have_no_time() -> None:
    assert _in_order(["a", "b", "c", "a"], [("a", 1.0), ("c", 2.0), ("a", 3.0)]) == [1, None, 2, 3]
    assert _in_order(["a", "a"], [("a", 1.0)]) == [None, None], "which of the two is not known"


def test_functions_of_the_model_count_once() -> None:
    """A function that calls kernels is none: its time is theirs."""
    text = """
# from tvm.script import ir as I, relax as R
@I.ir_module
class Module:
    @R.function(private=True)
    def inner(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            y = R.nn.softmax(x, axis=-1)
            R.output(y)
        return y

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        y: R.Tensor((8, 16), "float32") = Module.inner(x)
        return y
"""
    mod = tvm.script.from_source(text)
    model = tvm_stitch.explain(mod).measure(repeats=1).completed()
    softmax = [k for k in model.kernels if k.kind == "stitched"]
    assert softmax and all(k.measured for k in softmax)


def test_a_cuda_graph_is_not_captured() -> None:
    found = tvm_stitch.explain(head(), config=StitchConfig(cuda_graph=True)).measure(repeats=1)
    assert all(k.measured for k in found.completed().kernels)


def test_a_model_that_stock_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("tvm_stitch.relax.report.completed.count_lowered", fails)
    model = tvm_stitch.explain(head()).measure(repeats=1).completed()
    assert model.stock is None and model.stock_kernels == () and all(k.measured for k in model.kernels)


def test_without_the_device_it_says_so() -> None:
    if tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    report = tvm_stitch.explain(head(), "cuda -arch=sm_90")
    with pytest.raises(
        RuntimeError, match="no cuda device here; compile and explain need none, measuring does"
    ):
        report.measure()


def test_code_for_another_machine_is_not_run() -> None:
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    with pytest.raises(RuntimeError, match=f"would not run here: it is for {other}, and this machine is "):
        check_runs_here(resolve_target(f"llvm -mtriple={other}-linux-gnu"))


def test_code_for_a_newer_cpu_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "needed_flags", lambda _: ["avx9000"])
    with pytest.raises(RuntimeError, match="would not run here: .* lacks avx9000"):
        check_runs_here(resolve_target("native"))


def test_kernels_of_a_device_are_timed_by_its_events() -> None:
    if not tvm.cuda(0).exist:
        pytest.skip("needs a CUDA device")
    model = tvm_stitch.explain(head(4096), "cuda").measure(repeats=3).completed()
    assert all(k.measured and 0 < k.measured.median < 1e-3 for k in [*model.kernels, *model.stock_kernels])


FORWARD = """
# from tvm.script import ir as I, relax as R
@I.ir_module
class Module:
    @R.function
    def forward(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            y = R.nn.softmax(x, axis=-1)
            R.output(y)
        return y
"""


def test_the_only_function_is_run_whatever_its_name() -> None:
    report = tvm_stitch.explain(tvm.script.from_source(FORWARD))
    model = report.measure(repeats=1).completed()
    assert model.stock is not None and model.stock.kernels == 1 and all(k.measured for k in model.kernels)
    with pytest.raises(ValueError, match=r"forward takes 1 inputs, x: float32\[8, 16\]; got 2"):
        report.measure([np.ones((8, 16), F32)] * 2)


def test_of_several_functions_main_is_run() -> None:
    another = tvm.script.from_source(FORWARD.replace("forward", "decode"))
    both = tvm.IRModule({**tvm.script.from_source(FORWARD).functions, **another.functions})
    with pytest.raises(
        ValueError, match="one function is run, main or the only one .*; there are decode, forward"
    ):
        tvm_stitch.explain(both).measure()
    with pytest.raises(ValueError, match="there is none"):
        tvm_stitch.explain(tvm.IRModule({})).measure()
