# SPDX-License-Identifier: Apache-2.0
"""The check of the device before a cooperative launch: it lets pass what fits, and stops what does not."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.tirx.build import split_host_device_mods

import tvm_stitch
from cuda_emulator import Options, run_lowered
from cuda_emulator.lowering import Lowered, default_target, lower
from tvm_stitch import compat
from tvm_stitch.codegen import builder as B
from tvm_stitch.codegen.gpu.launch_check import check_multiprocessors
from tvm_stitch.codegen.gpu.memory.scratch import declare_scratch, finish
from tvm_stitch.compat import T, tir
from tvm_stitch.device import GPUS
from tvm_stitch.plan.kernel import Scratch

BLOCKS, THREADS = 4, 64


def normalized(rows: Any, needed: Any, dtype: str = "float32") -> tvm.IRModule:
    """x / x.sum() is one cooperative launch. The check asks the device of the input."""
    size = BLOCKS * THREADS
    x = tir.decl_buffer([rows, B.i64(size)], dtype, "x")
    out = tir.decl_buffer([rows, B.i64(size)], dtype, "out")
    scratch = declare_scratch([Scratch("part", (BLOCKS * THREADS,), dtype)])
    part = scratch["part"]
    with B.kernel() as body:
        check_multiprocessors(GPUS["h200"], x, needed)
        with ExitStack() as stack:
            block = stack.enter_context(T.launch_thread("blockIdx.x", B.i64(BLOCKS)))
            thread = stack.enter_context(T.launch_thread("threadIdx.x", B.i64(THREADS)))
            total = B.local([1], dtype, "total")
            column = block * B.i64(THREADS) + thread
            B.store(total, compat.const(0, dtype), [B.i64(0)])
            with B.loop("serial", rows, "row") as row:
                B.store(total, B.fetch(total, 0) + B.fetch(x, row, column), [B.i64(0)])
            B.store(part, B.fetch(total, 0), [column])
            B.evaluate(T.cuda.grid_sync())
            B.store(total, compat.const(0, dtype), [B.i64(0)])
            with B.loop("serial", size, "i") as i:
                B.store(total, B.fetch(total, 0) + B.fetch(part, i), [B.i64(0)])
            with B.loop("serial", rows, "row") as row:
                B.store(out, B.fetch(x, row, column) / B.fetch(total, 0), [row, column])
    launch = {"tirx.kernel_launch_params": ["tirx.use_cooperative_launch"], "op_pattern": 8}
    empty = tir.PrimFunc([x, out], tir.Evaluate(compat.const(0, "int32")))
    empty = empty.with_attr("global_symbol", "normalized").with_attr("s_tir", True)
    func = finish(empty.with_attr("tirx.noalias", True), body[0], scratch, launch)
    builder = relax.BlockBuilder()
    gvar = builder.add_func(func, "normalized")
    extent = rows if isinstance(rows, int) else tir.Var("m", "int64")
    given = relax.Var("x", relax.TensorType([extent, size], dtype))
    with builder.function("main", [given]):
        with builder.dataflow():
            result = builder.emit(relax.call_tir(gvar, [given], relax.TensorType([extent, size], dtype)))
            result = builder.emit_output(relax.op.negative(result))
        builder.emit_func_output(result)
    return builder.get()


def lowered(mod: tvm.IRModule) -> Lowered:
    target = default_target()
    return lower(mod, target, tvm_stitch.relax.pipeline(target))


def run(artifact: Lowered, x: np.ndarray, multiprocessors: int) -> Any:
    return run_lowered(artifact, [x], options=Options(multiprocessors=multiprocessors))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("needed", [None, 4])
def test_a_device_that_is_large_enough_is_let_through(needed: int | None, dtype: str) -> None:
    x = (np.random.default_rng(0).random((3, 256)) + 1).astype(dtype)  # no denormal half results
    artifact = lowered(normalized(3, needed, dtype))
    for multiprocessors in (132, 144):
        ran = run(artifact, x, multiprocessors).check()
        expected = -x / x.sum(dtype="float64")
        np.testing.assert_allclose(ran.outputs[0], expected, rtol=1e-5 if dtype == "float32" else 2e-2)
        assert [launch.cooperative for launch in ran.launches] == [True, False]


def test_a_device_that_is_too_small_is_an_error_before_any_launch() -> None:
    x = np.ones((3, 256), "float32")
    artifact = lowered(normalized(3, None))
    with pytest.raises(
        RuntimeError, match="planned for a device with 132 multiprocessors .h200. and needs 132"
    ):
        run(artifact, x, 131)
    run(artifact, x, 132).check()  # the same artifact asks anew at each call
    with pytest.raises(RuntimeError, match="compile for that device"):
        run(artifact, x, 78)


def test_what_counts_is_what_the_launch_needs() -> None:
    x = np.ones((3, 256), "float32")
    artifact = lowered(normalized(3, 4))
    run(artifact, x, 4).check()
    with pytest.raises(RuntimeError, match="132 multiprocessors .h200. and needs 4, more than the device"):
        run(artifact, x, 3)


def test_symbolic_shapes_are_checked_too() -> None:
    artifact = lowered(normalized(tir.Var("n", "int64"), None))
    rng = np.random.default_rng(1)
    for rows in (1, 5):
        x = rng.random((rows, 256)).astype("float32")
        np.testing.assert_allclose(
            run(artifact, x, 132).check().outputs[0], -x / x.sum(dtype="float64"), rtol=1e-5
        )
    with pytest.raises(RuntimeError, match="needs 132"):
        run(artifact, x, 131)


def test_a_need_that_depends_on_sizes() -> None:
    rows = tir.Var("n", "int64")
    artifact = lowered(normalized(rows, rows * B.i64(2)))
    run(artifact, np.ones((2, 256), "float32"), 4).check()
    with pytest.raises(RuntimeError, match=r"\(h200\) and needs more than the device"):
        run(artifact, np.ones((3, 256), "float32"), 4)


def test_the_device_asked_is_the_arguments() -> None:
    target = default_target()
    mod = tvm.tirx.transform.BindTarget(target)(normalized(3, None))
    mod = tvm.IRModule({g: f for g, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)})
    stages, finalize_host, _ = tvm.tirx.get_default_tir_pipeline(target)
    host, _ = split_host_device_mods(stages(mod))
    (func,) = [f for _, f in finalize_host()(host).functions_items()]
    text = func.script()
    # The device's id is that of the first argument, written to the structure that the check reads it from.
    assert "dev_id: T.let[T.int32] = T.tvm_struct_get(x_handle, 0, 9" in text
    assert "T.tvm_struct_set(stack_array, 0, 9, dev_id)" in text
    assert text.index("runtime.GetDeviceAttr") < text.index("normalized_kernel")


@pytest.mark.parametrize("needed", [0, 133])
def test_needs_that_the_planned_device_does_not_meet_are_errors(needed: int) -> None:
    with pytest.raises(
        ValueError, match=f"h200 has 132 multiprocessors, a launch on it cannot need {needed}"
    ):
        normalized(3, needed)
