# SPDX-License-Identifier: Apache-2.0
"""TVM's fusion of what no scope took, behind kernels with several results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.s_tir import dlight as dl
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import (
    FuseRest,
    LiftWorkspace,
    MergeStitchOps,
    ScheduleStitchOps,
    StitchOps,
    in_half_precision,
    pipeline,
)
from tvm_stitch.relax.rewriting.functions import own_functions
from tvm_stitch.relax.stitch.mark import OPAQUE_PATTERN
from tvm_stitch.rules import StitchRule

LLVM = tvm.target.Target("llvm")
TUPLES = 7


def module(opaque: bool) -> tvm.IRModule:
    """Some kernels of three results each, of which two are joined."""

    @T.prim_func(private=True, s_tir=True)
    def three(
        x: T.Buffer((4,), "float32"),
        a: T.Buffer((4,), "float32"),
        b: T.Buffer((4,), "float32"),
        c: T.Buffer((4,), "float32"),
    ) -> None:
        for i in range(4):
            with T.sblock("three"):
                v = T.axis.spatial(4, i)
                a[v] = x[v] + T.float32(1)
                b[v] = x[v] + T.float32(2)
                c[v] = x[v] + T.float32(3)

    builder = relax.BlockBuilder()
    called = builder.add_func(three.with_attr("op_pattern", OPAQUE_PATTERN) if opaque else three, "three")
    x = relax.Var("x", relax.TensorType([4], "float32"))
    result = relax.TensorType([4], "float32")
    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            items = []
            for _ in range(TUPLES):
                found = builder.emit(relax.call_tir(called, relax.Tuple([value]), [result] * 3))
                first, _, value = (builder.emit(relax.TupleGetItem(found, k)) for k in range(3))
                items += [first, value]
            joined = builder.emit(R.concat(items, 0))
            out = builder.emit_output(R.exp(joined))
        builder.emit_func_output(out)
    return relax.transform.LegalizeOps()(builder.get())


def wanted(x: np.ndarray) -> np.ndarray:
    items: list[np.ndarray] = []
    for _ in range(TUPLES):
        items, x = [*items, x + 1, x + 3], x + 3
    return np.exp(np.concatenate(items))


def test_a_function_is_given_all_that_it_reads() -> None:
    fused = FuseRest()(relax.transform.AnnotateTIROpPattern()(module(True)))
    primitive = [
        f
        for _, f in fused.functions_items()
        if isinstance(f, relax.Function) and "Primitive" in (f.attrs or {})
    ]
    assert len(primitive) == 1 and not relax.analysis.free_vars(primitive[0])
    assert not any(isinstance(p.ty, relax.TupleType) for p in primitive[0].params)
    values = [b for _, f in own_functions(fused) for block in f.body.blocks for b in block.bindings]
    assert not any(isinstance(b, relax.MatchCast) for b in values)
    executable = tvm.compile(relax.transform.FuseTIR()(fused), LLVM)
    x = np.linspace(-9, -8, 4).astype("float32")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, wanted(x.astype("float64")), 1e-5)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_elements_of_parameters(count: int) -> None:
    """Of several tuples a part each, in an order that is not the tuples'."""
    builder = relax.BlockBuilder()
    field = relax.TensorType([4], "float32")
    params = [relax.Var(f"p{i}", relax.TupleType([field] * 3)) for i in range(count)]
    with builder.function("main", params):
        with builder.dataflow():
            order = [*range(1, count, 2), *range(0, count, 2)]
            items = [builder.emit(relax.TupleGetItem(params[i], k)) for k in (2, 0) for i in order]
            result = items[0]
            for item in items[1:]:
                result = builder.emit(R.add(R.multiply(result, relax.const(0.5)), item))
            out = builder.emit_output(R.exp(result))
        builder.emit_func_output(out)
    legal = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(builder.get()))
    fused = FuseRest()(legal)
    made = [f for _, f in fused.functions_items() if isinstance(f, relax.Function)]
    assert not any(relax.analysis.free_vars(f) for f in made)
    assert not any(
        isinstance(p.ty, relax.TupleType) for f in made if "Primitive" in f.attrs for p in f.params
    )
    relax.transform.FuseTIR()(fused)


@pytest.mark.parametrize("rule", [False, True])
def test_pipelines_of_ones_own(rule: bool) -> None:
    """Those of the guide: with stitch ops, and with the rule alone."""
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    if not rule:
        passes += [relax.transform.ConvertToDataflow(min_size=1), StitchOps(), MergeStitchOps()]
        passes += [ScheduleStitchOps(cuda), LiftWorkspace()]
    passes += [FuseRest(), relax.transform.FuseTIR()]
    if rule:
        passes.append(dl.ApplyDefaultSchedule(StitchRule(), dl.gpu.Fallback()))
    with cuda:
        made = tvm.transform.Sequential(passes)(module(True))
    assert not any(relax.analysis.free_vars(f) for _, f in own_functions(made))
    kernels = [f for _, f in made.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 2  # the opaque one, and what joins all its results


def test_casts_of_the_program_stay() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((4,), "float32"), y: RS.Tensor("float32", ndim=1)) -> RS.Tensor(
            (4,), "float32"
        ):
            with RS.dataflow():
                cast = RS.match_cast(y, RS.Tensor((4,), "float32"))
                z = RS.add(x, cast)
                RS.output(z)
            return z

    before = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(Before))
    tvm.ir.assert_structural_equal(FuseRest()(before), relax.transform.FuseOps()(before), True)


def test_the_last_cells_of_lstms_in_both_directions() -> None:
    """Left to TVM, with what joins all their results."""
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LSTM(8, 8, batch_first=True, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(3, 5, 8)
    mod = from_exported_program(
        torch.export.export(model, (x,)), keep_params_as_input=False, unwrap_unit_return_tuple=True
    )
    recorder = Recorder()
    half = in_half_precision(mod, "float16")
    executable = tvm.compile(half, LLVM, relax_pipeline=pipeline(LLVM, None, recorder))
    assert recorder.declined == {}
    given = tvm.runtime.tensor(x.numpy().astype("float16"))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](given).numpy()
    exact = model.double()(x.double()).detach().numpy()
    np.testing.assert_allclose(found, exact, 0, 4e-3)


def elements_of_nine() -> tvm.IRModule:
    """Build a kernel that reads two elements of each of nine tuples."""
    builder = relax.BlockBuilder()
    field = relax.TensorType([4], "float32")
    params = [relax.Var(f"p{i}", relax.TupleType([field] * 3)) for i in range(9)]
    with builder.function("main", params):
        with builder.dataflow():
            order = [*range(1, 9, 2), *range(0, 9, 2)]
            first, *others = [builder.emit(relax.TupleGetItem(params[i], k)) for k in (2, 0) for i in order]
            for item in others:
                first = builder.emit(R.add(R.multiply(first, relax.const(0.5)), item))
            out = builder.emit_output(R.exp(first))
        builder.emit_func_output(out)
    return relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(builder.get()))


def is_any_wrong(fuse: Any) -> bool:
    """Return whether one of twelve such modules has a function that reads a value without taking it as an argument."""
    made = [fuse()(elements_of_nine()) for _ in range(12)]
    functions = [f for mod in made for _, f in mod.functions_items() if isinstance(f, relax.Function)]
    return any(relax.analysis.free_vars(f) for f in functions)


def test_fault() -> None:
    faults.needed(is_any_wrong(relax.transform.FuseOps), "legalize/fuse_rest.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_any_wrong(FuseRest)
    repair = faults.module_of("repairs.legalize.fuse_rest")
    monkeypatch.setattr(repair, "with_own_functions", lambda mod, change: mod)
    assert is_any_wrong(FuseRest)


def beside(kernel: tirx.PrimFunc) -> tvm.IRModule:
    """Build a kernel between a product by a number and a softmax."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = builder.emit(R.multiply(x, relax.const(0.5, "float32")))
            call = relax.call_tir(builder.add_func(kernel, "soft_sign"), [scaled], x.ty)
            y = builder.emit_output(R.nn.softmax(builder.emit(call)))
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("scheduled", [True, False])
def test_functions_of_users_are_stitched_or_stay(dtype: str, scheduled: bool) -> None:
    """Numbers in TVMScript are int32, which FuseTIR does not merge. A schedule is the user's."""
    rows, columns = tirx.const(4, dtype), tirx.const(8, dtype)

    @T.prim_func(private=True, s_tir=True)
    def soft_sign(x: T.Buffer((rows, columns), "float32"), y: T.Buffer((rows, columns), "float32")) -> None:
        for i, j in T.grid(rows, columns):
            with T.sblock("soft_sign"):
                r, c = T.axis.remap("SS", [i, j])
                y[r, c] = x[r, c] / (T.float32(1) + T.abs(x[r, c]))

    kernel = soft_sign.with_attr("tirx.is_scheduled", True) if scheduled else soft_sign
    mod = beside(kernel)
    names = count_kernels(mod, LLVM, pipeline(LLVM)).names
    if scheduled or dtype == "int32":
        assert names == ("multiply", "soft_sign", "stitch_softmax")
    else:
        assert names == ("stitch_multiply_soft_sign_softmax",)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    executable = relax.build(mod, LLVM, relax_pipeline=pipeline(LLVM))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    wanted = np.exp(x / 2 / (1 + np.abs(x / 2)))
    np.testing.assert_allclose(got, wanted / wanted.sum(-1, keepdims=True), rtol=1e-6)
