# SPDX-License-Identifier: Apache-2.0
"""A model's names reach generated code as identifiers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import tirx as T

from cuda_emulator import lower, run_lowered
from tvm_stitch.compat.identifiers import identifier
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.lowering.identifiers import (
    FunctionNames,
    VariableNames,
    check_identifiers,
    with_identifiers,
)

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
INJECTED = 'x){asm volatile("trap;");}\n__device__ int pwned; //'
NAMES = ["x y", "float4", "fooIdx.x", "?", INJECTED]


def _module(name: str, dim: str, function: str = "add_one") -> tvm.IRModule:
    """Build a softmax of a function by hand, whose input, symbolic rows and function have the given names."""
    rows = tirx.Var(dim, "int64")
    x = relax.Var(name, relax.TensorType([rows, 8], "float32"))
    builder = relax.BlockBuilder()
    buffers = [tirx.decl_buffer([tirx.Var(dim, "int64"), 8], "float32", name)]
    n = buffers[0].shape[0]
    buffers.append(tirx.decl_buffer([n, 8], "float32", f"{name} out"))
    by_hand = builder.add_func(_plus_one(*buffers).without_attr("global_symbol"), function)
    with builder.function("main", [x]):
        with builder.dataflow():
            added = builder.emit(relax.call_tir(by_hand, [x], out_ty=relax.TensorType([rows, 8], "float32")))
            result = builder.emit_output(op.nn.softmax(builder.emit(op.exp(added)), -1))
        builder.emit_func_output(result)
    return builder.get()


def _plus_one(source: tirx.Buffer, result: tirx.Buffer) -> tirx.PrimFunc:
    from tvm import te

    data = te.placeholder(source.shape, "float32", source.name)
    return te.create_prim_func(
        [data, te.compute(source.shape, lambda i, j: data[i, j] + T.float32(1), name=result.name)]
    )


def _expected(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype("float64") + 1)
    e = np.exp(e - e.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_kernels_compile_and_run(name: str) -> None:
    mod = _module(name, f"{name}n" if name == INJECTED else name, name)
    lowered = lower(mod, CUDA, pipeline(CUDA))
    assert 'asm volatile("trap' not in str(lowered.source) and "int pwned" not in str(lowered.source)
    x = np.random.default_rng(0).standard_normal((3, 8), dtype="float32")
    np.testing.assert_allclose(run_lowered(lowered, [x]).outputs[0], _expected(x), rtol=1e-5)
    assert mod["main"].params[0].name == name  # the module itself is not changed


def test_functions_keep_their_calls_and_public_functions_of_relax_their_names() -> None:
    mod = FunctionNames()(_module("x", "n", "add one"))
    assert {gvar.name_hint for gvar in mod.get_global_vars()} == {"main", identifier("add one")}
    assert FunctionNames()(mod).same_as(mod) or identifier(identifier("add one")) != identifier("add one")
    relax.analysis.well_formed(mod)
    again = _module("x", "n", "add_one")
    assert FunctionNames()(again).same_as(again)


def test_variables_are_renamed_in_functions_that_need_it() -> None:
    mod = VariableNames()(_module("x y", "rows and more"))
    func = next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    assert [str(p.name) for p in func.params] == [identifier("x y"), identifier("x y out")]
    assert str(func.params[0].shape[0]) == identifier("rows and more")
    assert func.params[0].shape[0].same_as(func.params[1].shape[0])
    plain = _module("x", "n")
    func = next(f for f in plain.functions.values() if isinstance(f, tirx.PrimFunc))
    assert with_identifiers(func).same_as(func) or "out" in str(func.params[1].name)


@pytest.mark.parametrize("axis", ["threadIdx.x", "blockIdx.z", "clusterCtaIdx.x", "vthread.y", ""])
def test_thread_axes_keep_their_names(axis: str) -> None:
    source = tirx.decl_buffer([tirx.Var(axis, "int64"), 8], "float32", "x")
    func = _plus_one(source, tirx.decl_buffer(source.shape, "float32", "out")).with_attr("target", CUDA)
    assert str(with_identifiers(func).params[0].shape[0].name) == axis
    check_identifiers(tvm.IRModule({"f": func}))


def test_what_reaches_the_code_generator_is_checked() -> None:
    source = tirx.decl_buffer([8, 8], "float32", "x y")
    func = _plus_one(source, tirx.decl_buffer([8, 8], "float32", "out"))
    mod = tvm.IRModule({"f": func.with_attr("target", CUDA)})
    with pytest.raises(ValueError, match="the name 'x y' in the kernel 'f' is no identifier of CUDA C"):
        check_identifiers(mod)
    check_identifiers(VariableNames()(mod))
    check_identifiers(tvm.IRModule({"f": func.with_attr("target", tvm.target.Target("llvm"))}))
    with pytest.raises(ValueError, match="the name 'a b'"):
        check_identifiers(tvm.IRModule({"a b": VariableNames()(mod)["f"]}))
