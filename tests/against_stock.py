# SPDX-License-Identifier: Apache-2.0
"""Modules that are stitched and compared with stock TVM, on llvm and on CUDA in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

import tvm_stitch
from cuda_emulator import run_cuda

LLVM = Target("llvm")
CUDA = Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")

Body = Callable[..., Any]


def module_of(body: Body, *specs: tuple[Sequence[Any], str], dataflow: bool = True) -> tvm.IRModule:
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    bb = relax.BlockBuilder()

    def emit(finish: Callable[[Any], Any]) -> Any:
        out = body(bb, *params)
        return finish(relax.Tuple(list(out)) if isinstance(out, (list, tuple)) else out)

    with bb.function("main", params):
        if dataflow:
            with bb.dataflow():
                result = emit(bb.emit_output)
        else:
            result = emit(bb.emit)
        bb.emit_func_output(result)
    return bb.get()


def module_for(body: Body, *arrays: np.ndarray) -> tvm.IRModule:
    return module_of(body, *[(a.shape, str(a.dtype)) for a in arrays])


def arrays_of(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [a for item in value for a in arrays_of(item)]


def run_on_llvm(
    mod: tvm.IRModule, pipeline: Any, inputs: Sequence[np.ndarray], func: str = "main"
) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM, relax_pipeline=pipeline), tvm.cpu())
    return arrays_of(vm[func](*[tvm.runtime.tensor(a) for a in inputs]))


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        if e.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(a, e)


def check_against_stock(
    mod: tvm.IRModule,
    inputs: Sequence[np.ndarray],
    func: str = "main",
    cuda: bool = True,
    expected: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Compare stitched with stock (or ``expected``) on llvm, and on CUDA in the emulator.

    The module stays as it was.
    """
    before = mod.script()
    stock = list(expected or run_on_llvm(mod, relax.get_default_pipeline(LLVM), inputs, func))
    assert_same(run_on_llvm(mod, tvm_stitch.relax.pipeline(LLVM), inputs, func), stock)
    if cuda:
        passes = tvm_stitch.relax.pipeline(CUDA)
        run = run_cuda(mod, list(inputs), target=CUDA, func=func, relax_pipeline=passes)
        assert not run.reports, [str(r) for r in run.reports[:3]]
        assert_same(arrays_of(run.outputs), stock)
    assert mod.script() == before
    return stock


def drawn(*shape: int, dtype: str = "float32", high: int = 100, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
