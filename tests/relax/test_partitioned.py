# SPDX-License-Identifier: Apache-2.0
"""Modules that a backend has taken parts of (BYOC): its calls stay as they are, what is between them is stitched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_op, wildcard

import tvm_stitch
from tests.graph.helpers import build
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline

F32 = "float32"
CODEGEN = "relax.ext.tvm_stitch_test"
PATTERNS = [("tvm_stitch_test.matmul", is_op("relax.matmul")(wildcard(), wildcard()))]


def compiled(func: Any) -> Any:
    """Return a runtime module of a partitioned matrix product, by TVM's own kernel."""
    shapes = [[int(e) for e in v.ty.shape.values] for v in func.params]
    (m, k), (_, n) = shapes
    x, w = (tvm.te.placeholder(shape, F32) for shape in shapes)
    axis = tvm.te.reduce_axis((0, k))
    y = tvm.te.compute((m, n), lambda i, j: tvm.te.sum(x[i, axis] * w[axis, j], axis))
    made = tvm.te.create_prim_func([x, w, y])
    name = str(func.attrs["global_symbol"])
    return tvm.tirx.build(tvm.IRModule({name: made.with_attr("global_symbol", name)}), "llvm")


@pytest.fixture
def codegen() -> Iterator[list[str]]:
    """Register a code generator, and yield the names of its functions."""
    given: list[str] = []

    def generate(functions: Any, _options: Any, _constants: Any) -> Any:
        given.extend(str(f.attrs["global_symbol"]) for f in functions)
        return [compiled(f) for f in functions]

    tvm_ffi.register_global_func(CODEGEN, generate, override=True)
    yield given
    tvm_ffi.registry.remove_global_func(CODEGEN)


def layers() -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any, v: Any, b: Any) -> list[Any]:
        y = emit(R.nn.softmax(emit(R.add(emit(R.matmul(x, w)), b))))
        return [R.nn.gelu(emit(R.matmul(y, v)))]

    return build(body, ((8, 16), F32), ((16, 24), F32), ((24, 12), F32), ((24,), F32))


def partitioned(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [
        relax.transform.FuseOpsByPattern(PATTERNS, bind_constants=False, annotate_codegen=True),
        relax.transform.RunCodegen(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def test_what_is_between_is_stitched_and_the_rest_is_the_backends(codegen: list[str]) -> None:
    mod = partitioned(layers())
    assert len(codegen) == 2
    recorder = Recorder()
    executable = tvm.compile(mod, "llvm", relax_pipeline=pipeline("llvm", None, recorder))
    assert not recorder.computed and not recorder.declined and len(recorder.plans) == 2
    counted = count_kernels(mod, "llvm", pipeline("llvm"))
    assert counted.memory_intensive == 2 and set(codegen) <= set(counted.names)
    arrays = [np.random.default_rng(i).standard_normal(s).astype(F32) for i, s in enumerate(
        ((8, 16), (16, 24), (24, 12), (24,)))]  # fmt: skip
    inputs = [tvm.runtime.tensor(a) for a in arrays]
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs).numpy()
    whole = relax.VirtualMachine(tvm_stitch.compile(layers()), tvm.cpu())["main"](*inputs).numpy()
    np.testing.assert_allclose(result, whole, rtol=1e-5, atol=1e-6)
