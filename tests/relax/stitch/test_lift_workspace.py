# SPDX-License-Identifier: Apache-2.0
"""LiftWorkspace: calls get their scratch from the memory planner, and nothing else about them changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_stitch
from cuda_emulator import run_cuda
from cuda_emulator.lowering import default_target
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.stitch.lift_workspace import LiftWorkspace, WorkspaceError


@I.ir_module(check_well_formed=False)
class Before:
    @T.prim_func(s_tir=True)
    def one(
        x: T.Buffer((64, 32), "float32"),
        out: T.Buffer((64, 32), "float32"),
        part: T.Buffer((4, 32), "float32"),
        count: T.Buffer((T.int64(7),), "int32"),
    ):
        T.func_attr({"tvm_stitch.workspace": 2})
        out[0, 0] = x[0, 0]

    @T.prim_func(s_tir=True)
    def two(
        x: T.Buffer((64, 32), "float32"),
        a: T.Buffer((64, 32), "float32"),
        b: T.Buffer((64,), "float32"),
        part: T.Buffer((4, 32), "float32"),
    ):
        T.func_attr({"tvm_stitch.workspace": 1})
        a[0, 0] = x[0, 0]
        b[0] = x[0, 0]

    @T.prim_func(s_tir=True)
    def none(x: T.Buffer((64, 32), "float32"), out: T.Buffer((64, 32), "float32")):
        out[0, 0] = x[0, 0]

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = Before
        with R.dataflow():
            y = R.call_tir(cls.one, (x,), R.Tensor((64, 32), "float32"))
            v = R.call_tir(cls.none, (y,), R.Tensor((64, 32), "float32"))
            t = R.call_tir(cls.two, (v,), [R.Tensor((64, 32), "float32"), R.Tensor((64,), "float32")])
            a = t[0]
            b = t[1]
            z = R.call_tir(cls.one, (a,), R.Tensor((64, 32), "float32"))
            R.output(z, b)
        return (z, b)

    @R.function
    def whole(x: R.Tensor((64, 32), "float32")):
        cls = Before
        with R.dataflow():
            t = R.call_tir(cls.two, (x,), [R.Tensor((64, 32), "float32"), R.Tensor((64,), "float32")])
            a = t[0]
            nested = (t, a)
            R.output(nested)
        return nested

    @R.function
    def branches(x: R.Tensor((64, 32), "float32"), c: R.Tensor((), "bool")):
        cls = Before
        if c:
            y = R.call_tir(cls.one, (x,), R.Tensor((64, 32), "float32"))
        else:
            y = x
        return y


@I.ir_module
class After:
    @T.prim_func(s_tir=True)
    def one(
        x: T.Buffer((64, 32), "float32"),
        out: T.Buffer((64, 32), "float32"),
        part: T.Buffer((4, 32), "float32"),
        count: T.Buffer((T.int64(7),), "int32"),
    ):
        T.func_attr({"tvm_stitch.workspace": 2})
        out[0, 0] = x[0, 0]

    @T.prim_func(s_tir=True)
    def two(
        x: T.Buffer((64, 32), "float32"),
        a: T.Buffer((64, 32), "float32"),
        b: T.Buffer((64,), "float32"),
        part: T.Buffer((4, 32), "float32"),
    ):
        T.func_attr({"tvm_stitch.workspace": 1})
        a[0, 0] = x[0, 0]
        b[0] = x[0, 0]

    @T.prim_func(s_tir=True)
    def none(x: T.Buffer((64, 32), "float32"), out: T.Buffer((64, 32), "float32")):
        out[0, 0] = x[0, 0]

    @R.function
    def main(x: R.Tensor((64, 32), "float32")):
        cls = After
        with R.dataflow():
            lv = R.call_tir(
                cls.one,
                (x,),
                [R.Tensor((64, 32), "float32"), R.Tensor((4, 32), "float32"), R.Tensor((7,), "int32")],
            )
            y = lv[0]
            v = R.call_tir(cls.none, (y,), R.Tensor((64, 32), "float32"))
            t = R.call_tir(
                cls.two,
                (v,),
                [R.Tensor((64, 32), "float32"), R.Tensor((64,), "float32"), R.Tensor((4, 32), "float32")],
            )
            a = t[0]
            b = t[1]
            lv1 = R.call_tir(
                cls.one,
                (a,),
                [R.Tensor((64, 32), "float32"), R.Tensor((4, 32), "float32"), R.Tensor((7,), "int32")],
            )
            z = lv1[0]
            R.output(z, b)
        return (z, b)

    @R.function
    def whole(x: R.Tensor((64, 32), "float32")):
        cls = After
        with R.dataflow():
            lv = R.call_tir(
                cls.two,
                (x,),
                [R.Tensor((64, 32), "float32"), R.Tensor((64,), "float32"), R.Tensor((4, 32), "float32")],
            )
            t0 = lv[0]
            t1 = lv[1]
            t = (t0, t1)
            a = t[0]
            nested = (t, a)
            R.output(nested)
        return nested

    @R.function
    def branches(x: R.Tensor((64, 32), "float32"), c: R.Tensor((), "bool")):
        cls = After
        if c:
            lv = R.call_tir(
                cls.one,
                (x,),
                [R.Tensor((64, 32), "float32"), R.Tensor((4, 32), "float32"), R.Tensor((7,), "int32")],
            )
            y = lv[0]
        else:
            y = x
        return y


def test_calls_get_their_workspace() -> None:
    lifted = LiftWorkspace()(Before)
    tvm.ir.assert_structural_equal(lifted, After)
    assert relax.analysis.check_well_formed(lifted)


def test_lifting_twice_changes_nothing() -> None:
    tvm.ir.assert_structural_equal(LiftWorkspace()(After), After)


@I.ir_module(check_well_formed=False)
class Symbolic:
    @T.prim_func(s_tir=True)
    def rows(
        x: T.Buffer(("n", T.int64(32)), "float32"),
        k: T.int64,
        out: T.Buffer(("n", T.int64(32)), "float32"),
        part: T.Buffer(("n // T.int64(16) + T.int64(1)", "k"), "float32"),
    ):
        T.func_attr({"tvm_stitch.workspace": 1})
        out[0, 0] = x[0, 0]

    @R.function
    def main(x: R.Tensor(("m", 32), "float32"), s: R.Shape(["k"])):
        m = T.int64()
        k = T.int64()
        cls = Symbolic
        with R.dataflow():
            y = R.call_tir(cls.rows, (x, k * 2), R.Tensor((m, 32), "float32"))
            R.output(y)
        return y


def test_symbolic_workspace_is_written_in_the_callers_symbols() -> None:
    lifted = LiftWorkspace()(Symbolic)
    assert relax.analysis.check_well_formed(lifted)
    call = lifted["main"].body.blocks[0].bindings[0].value
    result, part = call.ty_args[0].fields
    m, k = lifted["main"].params[0].ty.shape[0], lifted["main"].params[1].ty.values[0]
    tvm.ir.assert_structural_equal(result, relax.TensorType([m, 32], "float32"))
    tvm.ir.assert_structural_equal(part, relax.TensorType([m // 16 + 1, k * 2], "float32"))


def with_main(main: Any) -> tvm.IRModule:
    mod = tvm.IRModule({g: f for g, f in Before.functions_items() if isinstance(f, tvm.tirx.PrimFunc)})
    mod["main"] = main(mod)
    return mod


def test_calls_that_cannot_get_workspace_are_errors() -> None:
    def wrong_count(mod: tvm.IRModule) -> relax.Function:
        x = relax.Var("x", relax.TensorType([64, 32], "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            one = mod.get_global_var("one")
            builder.emit_func_output(builder.emit(relax.call_tir(one, [x, x], x.ty)))
        return builder.get()["main"]

    with pytest.raises(
        WorkspaceError, match="one has 4 parameters, 2 of them workspace, and is called with 3"
    ):
        LiftWorkspace()(with_main(wrong_count))

    def in_place(mod: tvm.IRModule) -> relax.Function:
        x = relax.Var("x", relax.TensorType([64, 32], "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            one = mod.get_global_var("one")
            call = relax.op.call_tir_inplace(one, [x], [0], [x.ty])
            builder.emit_func_output(builder.emit(call))
        return builder.get()["main"]

    with pytest.raises(WorkspaceError, match="one needs workspace: it can only be called by R.call_tir"):
        LiftWorkspace()(with_main(in_place))


def test_a_shape_that_nothing_gives_is_an_error() -> None:
    k = tvm.tirx.Var("k", "int64")
    rows = Symbolic["rows"]
    part = tvm.tirx.decl_buffer([k, tvm.tirx.IntImm("int64", 4)], "float32", "part")
    rows = tvm.tirx.PrimFunc([*rows.params[:3], part], rows.body, rows.ret_type, rows.attrs)
    mod = Symbolic.clone()
    mod.update_func(mod.get_global_var("rows"), rows)
    with pytest.raises(
        WorkspaceError, match="workspace part of rows .*k is neither an extent .* nor a scalar"
    ):
        LiftWorkspace()(mod)


@I.ir_module(check_well_formed=False)
class Chain:
    """Two calls of a kernel with a grid barrier divide every element by its column's sum, between stock operators."""

    @T.prim_func(s_tir=True)
    def columns(
        x: T.Buffer((128, 32), "float32"),
        out: T.Buffer((128, 32), "float32"),
        part: T.Buffer((4, 32), "float32"),
    ):
        T.func_attr(
            {
                "tirx.is_scheduled": True,
                "op_pattern": 8,
                "tirx.noalias": True,
                "tirx.kernel_launch_params": ["tirx.use_cooperative_launch"],
                "tvm_stitch.workspace": 1,
            }
        )
        with T.sblock("root"):
            T.reads()
            T.writes()
            bx = T.launch_thread("blockIdx.x", 4)
            tx = T.launch_thread("threadIdx.x", 32)
            acc = T.alloc_buffer((1,), "float32", scope="local")
            acc[0] = T.float32(0)
            for i in range(32):
                acc[0] = acc[0] + x[bx * 32 + i, tx]
            part[bx, tx] = acc[0]
            T.evaluate(T.cuda.grid_sync())
            acc[0] = part[0, tx] + part[1, tx] + part[2, tx] + part[3, tx]
            for i in range(32):
                out[bx * 32 + i, tx] = x[bx * 32 + i, tx] / acc[0]

    @R.function
    def main(x: R.Tensor((128, 32), "float32"), w: R.Tensor((32, 32), "float32")):
        cls = Chain
        with R.dataflow():
            y = R.call_tir(cls.columns, (x,), R.Tensor((128, 32), "float32"))
            e = R.exp(y)
            h = R.matmul(e, w)
            z = R.call_tir(cls.columns, (h,), R.Tensor((128, 32), "float32"))
            o = R.tanh(z)
            R.output(o)
        return o


def test_the_planner_reuses_workspace() -> None:
    target = default_target()
    with target, tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": False}):
        passes = [LiftWorkspace(), relax.transform.LegalizeOps(), relax.transform.ToNonDataflow()]
        passes += [relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite()]
        mod = tvm.transform.Sequential([*passes, relax.transform.StaticPlanBlockMemory()])(Chain)
    storages: dict[Any, int] = {}
    parts = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            name = getattr(getattr(binding.value, "op", None), "name", "")
            if name == "relax.memory.alloc_storage":
                storages[binding.var] = int(binding.value.args[0].values[0])
            elif name == "relax.memory.alloc_tensor" and list(binding.var.ty.shape) == [4, 32]:
                parts.append(binding.value.args[0])
    assert len(parts) == 2 and parts[0].same_as(parts[1])
    sizes = [size for var, size in storages.items() if var.same_as(parts[0])]
    assert sizes == [4 * 32 * 4]


@pytest.mark.parametrize("stitched", [False, True])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_cooperative_kernel_with_workspace_runs(stitched: bool, seed: int) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.random((128, 32)).astype("float32"), rng.random((32, 32)).astype("float32")
    target = default_target()
    mod = Chain if stitched else LiftWorkspace()(Chain)
    chosen = tvm_stitch.relax.pipeline(target) if stitched else None
    run = run_cuda(mod, [x, w], target, relax_pipeline=chosen, seed=seed).check()
    h = np.exp(x / x.sum(0, dtype="float64")) @ w.astype("float64")
    np.testing.assert_allclose(run.outputs[0], np.tanh(h / h.sum(0)), rtol=2e-6)
    assert [launch.cooperative for launch in run.launches].count(True) == 2


def test_later_passes_keep_the_calls_as_lifted() -> None:
    passes = [LiftWorkspace(), relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    passes += [relax.transform.CanonicalizeBindings(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    with default_target():
        mod = tvm.transform.Sequential([*passes, relax.transform.DeadCodeElimination()])(Chain)
    calls = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    lifted = [c for c in calls if isinstance(c, relax.Call) and c.args[0].name_hint == "columns"]
    assert [[list(f.shape) for f in c.ty_args[0].fields] for c in lifted] == [[[128, 32], [4, 32]]] * 2
    tvm.ir.assert_structural_equal(mod["columns"], Chain["columns"])


@pytest.mark.parametrize("asked", ["pass context", "option"])
def test_cuda_graphs_capture_calls_with_workspace(asked: str) -> None:
    target = default_target()
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": asked == "pass context"}):
        mod = tvm_stitch.relax.pipeline(target, StitchConfig(cuda_graph=asked == "option"))(Chain)
    captured = [f for g, f in mod.functions_items() if "cuda_graph_capture" in g.name_hint]
    calls = [b.value for f in captured for block in f.body.blocks for b in block.bindings]
    # The other call reads the function's own argument, which stays outside of what is captured.
    assert [getattr(getattr(c, "op", None), "name_hint", "") for c in calls].count("columns") == 1


def test_threads_may_rewrite_each_others_workspace_but_not_without_a_barrier() -> None:
    x = np.random.default_rng(2).random((128, 32)).astype("float32")
    w = np.zeros((32, 32), "float32")
    again = "            T.cuda.grid_sync()\n            part[3 - bx, tx] = acc[0]\n"
    old = "            for i in range(32):\n                out"
    script = Chain.script()
    assert script.count(old) == 1
    rewriting = tvm.script.from_source(script.replace(old, again + old), check_well_formed=False)
    run_cuda(LiftWorkspace()(rewriting), [x, w]).check()
    racing = tvm.script.from_source(
        script.replace(old, again.replace("grid", "cta") + old), check_well_formed=False
    )
    assert {r.kind for r in run_cuda(LiftWorkspace()(racing), [x, w]).reports} == {"race"}
