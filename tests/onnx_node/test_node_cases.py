# SPDX-License-Identifier: Apache-2.0
"""ONNX's node cases are right stitched on llvm, or wrong in stock TVM too, with no more kernels.

By default every second case runs. Neighbours are variants of an operator. ``STITCH_NODE_CASES=1`` runs all.

The table at the end of a run (tests/conftest.py prints it) counts the cases by what became of them. Those that pass are
listed in passes.txt, so that none can drop out unseen. To write it anew:

    rm tests/onnx_node/passes.txt; STITCH_NODE_CASES=1 STITCH_WRITE_PASSES=1 pytest -n 0 tests/onnx_node
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import numpy_helper
from tvm import relax

from stitch_testing.more_than_stock import more_than_stock
from stitch_testing.random.graphs import emulated_target
from tests.onnx_node.cases import family, node_cases, simplify
from tvm_stitch.execution.count import count_lowered
from tvm_stitch.importers.onnx.load import from_onnx
from tvm_stitch.relax.pipeline import Recorder, pipeline

LIST = Path(__file__).with_name("passes.txt")
TARGET = tvm.target.Target("llvm")
EVERY = int(os.environ.get("STITCH_NODE_CASES", "2"))
"""One case of so many runs."""
ON_CUDA = int(os.environ.get("STITCH_ON_CUDA", "61"))
"""One case of so many has its kernels counted on CUDA."""
WRITE = bool(os.environ.get("STITCH_WRITE_PASSES"))
PASSES = frozenset(LIST.read_text(encoding="utf-8").split()) if LIST.exists() and not WRITE else frozenset()

# Outcomes of a case, which are the table's columns.
PASSED, STOCK_FAILS, NOT_IMPORTED, OURS_FAILS = "passed", "stock fails too", "not imported", "ours fails"


_M_PERTURB = -6  # glibc's mallopt: fill memory on allocation


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Outputs that nobody writes (stock TVM's reduction over no elements) are wrong always, not by chance."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_PERTURB, 0x15)
    yield
    libc.mallopt(_M_PERTURB, 0)


@pytest.mark.parametrize("name", list(node_cases())[::EVERY])
def test_node_case(name: str, record_property: Callable[[str, object], None]) -> None:
    recorder = Recorder()
    outcome, reason = _grade(name, recorder)
    record_property("onnx_node", [family(name), outcome, len(recorder.plans), len(recorder.declined)])
    if outcome == OURS_FAILS:
        pytest.fail(f"right in stock TVM, wrong stitched: {reason}")
    if WRITE:
        if outcome == PASSED:
            with LIST.open("a", encoding="utf-8") as file:
                print(name, file=file)
    elif name in PASSES:
        assert outcome == PASSED, f"listed in {LIST.name}, but {outcome}: {reason}"
    if outcome != PASSED:
        pytest.skip(f"{outcome}: {reason}")


def test_list_names_known_cases() -> None:
    assert WRITE or PASSES
    assert node_cases().keys() >= PASSES


def _grade(name: str, recorder: Recorder) -> tuple[str, str]:
    """Return the outcome of a case, and the reason. The recorder gets its stitch ops."""
    case = node_cases()[name]
    try:
        runs = [_import(case.model, inputs, outputs) for inputs, outputs in case.data_sets]
    except Exception as error:
        return NOT_IMPORTED, _line(error)
    right = 0
    for mod, inputs, expected in runs:
        seen = _Seen(pipeline(TARGET, recorder=recorder))
        wrong = _wrong(mod, seen, inputs, expected, case)
        right += len(expected) - len(wrong)
        if wrong:
            theirs = _wrong(mod, relax.get_default_pipeline(TARGET), inputs, expected, case)
            if ours := [f"output {i}: {text}" for i, text in wrong.items() if i not in theirs]:
                return OURS_FAILS, "; ".join(ours)
            if len(wrong) == len(expected):
                return STOCK_FAILS, theirs[0]
        if more := _more_kernels(mod, seen.mod):
            return OURS_FAILS, more
    return PASSED, f"{right} outputs right"


def _wrong(
    mod: tvm.IRModule, passes: Any, inputs: list[np.ndarray], expected: list[np.ndarray], case: Any
) -> dict[int, str]:
    """Return the outputs that are not as expected, each with its fault.

    The importer leaves some optional ones unset.
    """
    try:
        got = _run(mod, passes, inputs)
    except Exception as error:
        return dict.fromkeys(range(len(expected)), _line(error))
    found = {
        i: _difference(got[i], want, case) if i < len(got) else "unset" for i, want in enumerate(expected)
    }
    return {i: text for i, text in found.items() if text}


class _Seen:
    """A pipeline, and what it made last."""

    def __init__(self, made: Callable[[tvm.IRModule], tvm.IRModule]):
        self.made, self.mod = made, tvm.IRModule()

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        self.mod = self.made(mod)
        return self.mod


def _more_kernels(mod: tvm.IRModule, stitched: tvm.IRModule) -> str:
    try:
        with TARGET:
            stock = relax.get_default_pipeline(TARGET)(mod)
    except Exception:  # nothing to compare with
        return ""
    before, after = (count_lowered(lowered, TARGET) for lowered in (stock, stitched))
    if after.memory_intensive <= before.memory_intensive and after.total <= before.total:
        return ""
    return f"more kernels than stock: {', '.join(after.names)} for {', '.join(before.names)}"


@pytest.mark.parametrize("name", list(node_cases())[::ON_CUDA])
def test_node_case_has_no_more_kernels_on_cuda(name: str) -> None:
    case, target = node_cases()[name], emulated_target()
    try:
        mod, _, _ = _import(case.model, *case.data_sets[0])
    except Exception as error:
        pytest.skip(f"not imported: {_line(error)}")
    assert more_than_stock(mod, target, pipeline(target)) == ""


def _import(
    model: Any, inputs: list[Any], outputs: list[Any]
) -> tuple[tvm.IRModule, list[np.ndarray], list[np.ndarray]]:
    """Import a case as it is, or else simplified, with the inputs that are left and the expected outputs."""
    outputs = outputs[0] if len(outputs) == 1 and isinstance(outputs[0], list) else outputs  # a sequence
    inputs, outputs = [_array(each) for each in inputs], [_array(each) for each in outputs]
    named = {value.name: data for value, data in zip(model.graph.input, inputs, strict=True)}
    try:
        mod = from_onnx(model)
    except Exception:
        model = simplify(model, named)
        mod = from_onnx(model)
    filled = {tensor.name for tensor in model.graph.initializer}
    left = [np.asarray(named[value.name]) for value in model.graph.input if value.name not in filled]
    return mod, left, [np.asarray(output) for output in outputs]


def _array(value: Any) -> Any:
    """Return a tensor as an array. Cases give types unknown to NumPy as protobuf messages."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _run(mod: tvm.IRModule, pipeline: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
    result = machine["main"](*[tvm.runtime.tensor(value) for value in inputs])
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [item.numpy() for item in result]


def _difference(got: np.ndarray, want: np.ndarray, case: Any) -> str:
    """Describe the difference of an output, if any.

    The case's own tolerances hold, for half types at least two steps.
    """
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    rtol, atol = case.rtol, max(case.atol, 1e-6)
    if got.dtype.name in ("float16", "bfloat16"):
        step = 2 * float(ml_dtypes.finfo(got.dtype).eps)
        rtol, atol = max(rtol, step), max(atol, step)
        got, want = got.astype(np.float32), want.astype(np.float32)
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1][:150]}"
