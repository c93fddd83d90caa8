# SPDX-License-Identifier: Apache-2.0
"""Whole Relax functions compiled for CUDA run in the emulator, and give right values and no findings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from cuda_emulator import Options, run_cuda, run_lowered
from cuda_emulator.lowering import default_target, lower


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@I.ir_module
class VectorAdd:
    @T.prim_func(s_tir=True)
    def add(
        x: T.Buffer((1000,), "float32"), y: T.Buffer((1000,), "float32"), out: T.Buffer((1000,), "float32")
    ):
        T.func_attr({"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True})
        with T.sblock("root"):
            T.reads()
            T.writes()
            bx = T.launch_thread("blockIdx.x", 4)
            tx = T.launch_thread("threadIdx.x", 256)
            if bx * 256 + tx < 1000:
                out[bx * 256 + tx] = x[bx * 256 + tx] + y[bx * 256 + tx]

    @R.function
    def main(x: R.Tensor((1000,), "float32"), y: R.Tensor((1000,), "float32")):
        cls = VectorAdd
        with R.dataflow():
            z = R.call_tir(cls.add, (x, y), R.Tensor((1000,), "float32"))
            R.output(z)
        return z


def test_vector_add_and_its_launch() -> None:
    x = np.random.default_rng(0).standard_normal((2, 1000)).astype("float32")
    run = run_cuda(VectorAdd, [x[0], x[1]]).check()
    np.testing.assert_array_equal(run.outputs[0], x[0] + x[1])
    (launch,) = run.launches
    assert (launch.name, launch.grid, launch.block, launch.shared_bytes) == (
        "add_kernel",
        (4, 1, 1),
        (256, 1, 1),
        0,
    )


def test_planted_out_of_bounds_is_found_through_relax() -> None:
    broken = tvm.script.from_source(
        VectorAdd.script().replace("bx * 256 + tx < 1000", "bx * 256 + tx < 1001")
    )
    x = np.ones(1000, "float32")
    run = run_cuda(broken, [x, x])
    assert {r.kind for r in run.reports} == {"out-of-bounds"}
    assert {(r.array, r.offset) for r in run.reports} == {("x", 1000), ("y", 1000), ("out", 1000)}
    assert {(r.block, r.thread) for r in run.reports} == {((3, 0, 0), (232, 0, 0))}


def test_planted_missing_elements_are_found_through_relax() -> None:
    broken = tvm.script.from_source(VectorAdd.script().replace("bx * 256 + tx < 1000", "bx * 256 + tx < 990"))
    x = np.ones(1000, "float32")
    run = run_cuda(broken, [x, x])
    assert [(r.kind, r.array, r.offset) for r in run.reports] == [("unwritten", "out", 990)]
    assert np.isnan(run.outputs[0][990:]).all()


@I.ir_module
class SymbolicChain:
    @R.function
    def main(x: R.Tensor(("n", 100), "float32"), w: R.Tensor((100, 24), "float32")):
        with R.dataflow():
            y = R.nn.softmax(x)
            y = R.add(y, R.const(np.arange(100, dtype="float32")))
            z = R.matmul(y, w)
            R.output(y, z)
        return z, y


def test_symbolic_rows_one_artifact_several_sizes() -> None:
    lowered = lower(SymbolicChain, default_target())
    rng = np.random.default_rng(0)
    w = rng.standard_normal((100, 24)).astype("float32")
    for n in (1, 7, 33):
        x = rng.standard_normal((n, 100)).astype("float32")
        run = run_lowered(lowered, [x, w], seed=n).check()
        expected = softmax(x.astype("float64")) + np.arange(100)
        np.testing.assert_allclose(run.outputs[1], expected, rtol=1e-5)
        np.testing.assert_allclose(run.outputs[0], expected @ w, rtol=1e-4, atol=1e-3)
        assert len(run.launches) == 2
        assert run.launches[0].grid == (n, 1, 1)


def chain(dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 64), dtype))
    w = relax.Var("w", relax.TensorType((64, 32), dtype))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            h = builder.emit(relax.op.nn.softmax(relax.op.exp(x)))
            h = builder.emit(relax.op.matmul(h, w))
            out = builder.emit_output(relax.op.add(relax.op.tanh(h), relax.const(0.5, dtype)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)])
def test_types_of_stock_kernels(dtype: str, tolerance: float) -> None:
    rng = np.random.default_rng(1)
    storage = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, w = (rng.standard_normal(s).astype(storage) for s in ((16, 64), (64, 32)))
    run = run_cuda(chain(dtype), [x, w]).check()
    wide_x, wide_w = x.astype("float64"), w.astype("float64")
    expected = np.tanh(softmax(np.exp(wide_x)) @ wide_w) + 0.5
    assert run.outputs[0].dtype == storage
    np.testing.assert_allclose(run.outputs[0].astype("float64"), expected, atol=tolerance)


def test_integers_booleans_and_mixed_types() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 37), "float32"))
    mask = relax.Var("mask", relax.TensorType((6, 37), "bool"))
    with builder.function("main", [x, mask]):
        with builder.dataflow():
            kept = builder.emit(relax.op.where(mask, x, relax.const(0.0, "float32")))
            small = builder.emit_output(relax.op.astype(relax.op.clip(kept, -100, 100), "int8"))
            larger = builder.emit_output(relax.op.greater(kept, relax.const(0.5, "float32")))
        builder.emit_func_output(relax.Tuple([small, larger]))
    rng = np.random.default_rng(2)
    value, keep = (rng.standard_normal((6, 37)) * 50).astype("float32"), rng.random((6, 37)) < 0.5
    run = run_cuda(builder.get(), [value, keep]).check()
    expected = np.where(keep, value, 0).clip(-100, 100)
    np.testing.assert_array_equal(run.outputs[0], expected.astype("int8"))
    np.testing.assert_array_equal(run.outputs[1], expected > 0.5)


def rows_in_order(function: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 40), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            if function == "sort":
                result = builder.emit_output(relax.op.sort(x, -1))
            else:
                result = builder.emit_output(relax.op.topk(x, 4, -1, "values"))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("function", ["sort", "topk"])
def test_host_code_takes_workspace_between_its_kernels(function: str) -> None:
    x = np.random.default_rng(0).permutation(120).reshape(3, 40).astype("float32")
    run = run_cuda(rows_in_order(function), [x]).check()
    expected = np.sort(x, -1) if function == "sort" else np.sort(x, -1)[:, :-5:-1]
    np.testing.assert_array_equal(run.outputs[0], expected)
    assert len(run.launches) > 1


@I.ir_module
class TwoKernels:
    @T.prim_func(s_tir=True)
    def through(x: T.Buffer((32,), "float32"), out: T.Buffer((32,), "float32")):
        T.func_attr({"tirx.is_scheduled": True, "op_pattern": 8, "tirx.noalias": True})
        with T.sblock("root"):
            T.reads()
            T.writes()
            between = T.sblock_alloc_buffer((32,), "float32")
            with T.sblock("first"):
                T.reads()
                T.writes()
                tx = T.launch_thread("threadIdx.x", 32)
                if tx < 31:
                    between[tx] = x[tx]
            with T.sblock("second"):
                T.reads()
                T.writes()
                ty = T.launch_thread("threadIdx.x", 32)
                out[ty] = between[ty]

    @R.function
    def main(x: R.Tensor((32,), "float32")):
        cls = TwoKernels
        with R.dataflow():
            z = R.call_tir(cls.through, (x,), R.Tensor((32,), "float32"))
            R.output(z)
        return z


def test_planted_read_of_unwritten_workspace_is_found() -> None:
    run = run_cuda(TwoKernels, [np.ones(32, "float32")])
    (found,) = [r for r in run.reports if r.kind == "uninitialized-read"]
    assert (found.offset, found.thread) == (31, (31, 0, 0))


def test_functions_of_the_host_read_tensors_of_the_device() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    with builder.function("main", [x]):
        places = builder.emit(relax.op.nonzero(builder.emit(relax.op.nn.relu(x))))
        builder.emit_func_output(places)
    given = np.random.default_rng(1).standard_normal((3, 4)).astype("float32")
    run = run_cuda(builder.get(), [given]).check()
    np.testing.assert_array_equal(run.outputs[0], np.stack(np.nonzero(given > 0)))


def test_stock_transformer_block() -> None:
    heads, rows, hidden = 2, 16, 32
    builder = relax.BlockBuilder()
    names = ["x", "wq", "wk", "wv", "wo"]
    shapes = [(rows, hidden)] + [(hidden, hidden)] * 4
    x, wq, wk, wv, wo = params = [
        relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip(names, shapes, strict=True)
    ]
    op = relax.op
    with builder.function("main", params):
        with builder.dataflow():
            q, k, v = (
                builder.emit(
                    op.permute_dims(op.reshape(op.matmul(x, w), (rows, heads, hidden // heads)), [1, 0, 2])
                )
                for w in (wq, wk, wv)
            )
            weights = builder.emit(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 2, 1]))))
            mixed = builder.emit(
                op.reshape(op.permute_dims(op.matmul(weights, v), [1, 0, 2]), (rows, hidden))
            )
            out = builder.emit_output(op.add(x, op.matmul(mixed, wo)))
        builder.emit_func_output(out)
    rng = np.random.default_rng(6)
    values = [(rng.standard_normal(s) / 4).astype("float32") for s in shapes]
    run = run_cuda(builder.get(), values, seed=9).check()
    wide = [v.astype("float64") for v in values]
    q, k, v = ((wide[0] @ w).reshape(rows, heads, hidden // heads).transpose(1, 0, 2) for w in wide[1:4])
    mixed = (softmax(q @ k.transpose(0, 2, 1)) @ v).transpose(1, 0, 2).reshape(rows, hidden)
    np.testing.assert_allclose(run.outputs[0], wide[0] + mixed @ wide[4], atol=1e-5)


def test_optimised_kernels_find_the_same() -> None:
    broken = tvm.script.from_source(
        VectorAdd.script().replace("bx * 256 + tx < 1000", "bx * 256 + tx < 1001")
    )
    x = np.ones(1000, "float32")
    found = [
        {
            (r.kind, r.array, r.offset)
            for r in run_cuda(broken, [x, x], options=Options(opt_level=level)).reports
        }
        for level in ("-O0", "-O1")
    ]
    assert found[0] == found[1] and len(found[0]) == 3


def test_a_launch_that_is_given_up_leaves_no_outputs() -> None:
    script = VectorAdd.script().replace("x[bx * 256 + tx] +", "x[bx * 256 + tx * 100000000] +")
    x = np.ones(1000, "float32")
    run = run_cuda(tvm.script.from_source(script), [x, x])
    assert {r.kind for r in run.reports} == {"out-of-bounds"} and not run.outputs
    assert run_cuda(VectorAdd, [x, x]).check().outputs[0][0] == 2  # the emulator is still usable


def test_threads_take_turns() -> None:
    """Kernels are global functions: threads whose kernels have equal names and other shapes."""

    def module(columns: int) -> tvm.IRModule:
        x = relax.Var("x", relax.TensorType((4, columns), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(relax.op.exp(x))
            builder.emit_func_output(result)
        return builder.get()

    compiled = {columns: lower(module(columns), default_target()) for columns in range(5, 13)}

    def run(columns: int) -> bool:
        data = np.linspace(-1, 1, 4 * columns, dtype="float32").reshape(4, columns)
        runs = [run_lowered(compiled[columns], [data]).check().outputs[0] for _ in range(3)]
        return all(np.allclose(found, np.exp(data), rtol=1e-5) for found in runs)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, compiled))


def test_views_of_one_constant_keep_their_shapes() -> None:
    """A reshape of a constant shares its address, and is another tensor to a kernel."""

    @I.ir_module
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def add(
            a: T.Buffer((4, 6), "float32"), b: T.Buffer((24,), "float32"), c: T.Buffer((4, 6), "float32")
        ):
            for i in T.thread_binding(4, thread="blockIdx.x"):
                for j in T.thread_binding(6, thread="threadIdx.x"):
                    with T.sblock("add"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        c[vi, vj] = a[vi, vj] + b[vi * 6 + vj]

        @R.function
        def main(x: R.Tensor((1,), "float32"), held: R.Tensor((4, 6), "float32")) -> R.Tensor(
            (4, 6), "float32"
        ):
            cls = Module
            with R.dataflow():
                flat = R.reshape(held, (24,))
                out = R.call_tir(cls.add, (held, flat), out_ty=R.Tensor((4, 6), "float32"))
                R.output(out)
            return out

    values = np.arange(24, dtype="float32").reshape(4, 6)
    mod = relax.transform.BindParams("main", {"held": values})(Module)
    unfolded = relax.get_pipeline(
        "default_build"
    )  # TVM's pipeline for a GPU would copy the reshaped constant
    run = run_cuda(mod, [np.zeros(1, "float32")], relax_pipeline=unfolded).check()
    np.testing.assert_array_equal(run.outputs[0], 2 * values)


@I.ir_module
class OnePathOfTwo:
    @R.function
    def main(x: R.Tensor((8,), "float32"), positive: R.Tensor((), "bool")) -> R.Tensor((8,), "float32"):
        if positive:
            y: R.Tensor((8,), "float32") = R.exp(x)
        else:
            y: R.Tensor((8,), "float32") = R.negative(x)
        return y


@pytest.mark.parametrize("positive", [False, True])
def test_the_host_reads_the_condition_of_a_branch(positive: bool) -> None:
    x = np.arange(8, dtype="float32")
    run = run_cuda(OnePathOfTwo, [x, np.array(positive)]).check()
    np.testing.assert_allclose(run.outputs[0], np.exp(x) if positive else -x, rtol=1e-6)


def test_the_host_reads_a_shape_from_a_tensor() -> None:
    builder = relax.BlockBuilder()
    x, sizes = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in (("x", (1, 3), "float32"), ("sizes", (2,), "int64"))
    )
    with builder.function("main", [x, sizes]):
        shape = builder.emit(relax.op.tensor_to_shape(sizes))
        dims = [tvm.tirx.Var(name, "int64") for name in "nm"]
        builder.match_cast(shape, relax.ShapeType(dims))
        builder.emit_func_output(builder.emit(relax.op.broadcast_to(x, dims)))
    given = np.ones((1, 3), "float32")
    run = run_cuda(builder.get(), [given, np.array([4, 3])]).check()
    np.testing.assert_array_equal(run.outputs[0], np.ones((4, 3)))
