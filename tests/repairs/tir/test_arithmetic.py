# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on special values: NaN and infinities stay, integers of every width wrap around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from cuda_emulator import run_cuda
from stitch_testing.expressions import (
    Tree,
    construct,
    float_trees,
    integer_trees,
    special_pairs,
    wrong,
    zero_trees,
)
from tests.graph import helpers
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tests.repairs.schedule.test_sound_arithmetic import left_to_tvm
from tvm_stitch import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.tir.arithmetic import DeviceArithmetic

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
STRICT = StitchConfig(strict=True)
RELATIVE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12}


class Emitting:
    """``relax.op`` with every call bound to a variable."""

    def __init__(self, builder: relax.BlockBuilder):
        self.builder = builder

    def __getattr__(self, name: str):
        return lambda *args: self.builder.emit(getattr(relax.op, name)(*args))


def module(trees: Sequence[Tree], dtype: str, count: int) -> tvm.IRModule:
    """Build a function of x and y with an output for every tree."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((count,), dtype)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            ops = Emitting(builder)
            calls = [
                construct(
                    t,
                    {"x": x, "y": y},
                    ops,
                    lambda v: relax.const(np.array(v).astype(np.dtype(dtype)), dtype),
                )
                for t in trees
            ]
            outputs = [builder.emit_output(c) for c in calls]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def compute(trees: Sequence[Tree], kind: str, dtype: str) -> list[str]:
    """Return the faults of a kernel of the trees."""
    x, y = special_pairs(dtype)
    mod = module(trees, dtype, len(x))
    if kind == "cuda":
        run = run_cuda(mod, [x, y], target=CUDA, relax_pipeline=pipeline(CUDA, STRICT)).check()
        results = run.outputs
    else:
        target = tvm.target.Target(kind)
        vm = relax.VirtualMachine(
            tvm.compile(mod, target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
        )
        results = [r.numpy() for r in vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y))]
    return wrong(trees, {"x": x, "y": y}, results, RELATIVE.get(dtype, 0))


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", RELATIVE)
def test_floats_keep_nan_and_infinities(kind: str, dtype: str) -> None:
    every = 5 if dtype == "float32" else 17
    assert not compute(float_trees()[len(dtype) % every :: every], kind, dtype)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")])
def test_integers_wrap_around(kind: str, dtype: str) -> None:
    every = 7 if dtype in ("uint8", "int32") else 19
    assert not compute(integer_trees(dtype)[::every] + zero_trees(), kind, dtype)


REDUCED = {
    "rows": ((5, 300), 1),
    "columns": ((300, 40), 0),
    "long rows": ((2, 70001), 1),
}


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("where", REDUCED)
def test_reductions_keep_nan(kind: str, where: str) -> None:
    shape, axis = REDUCED[where]
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype("float32")
    x.flat[rng.choice(x.size, 3, replace=False)] = [np.nan, np.inf, -np.inf]
    builder = relax.BlockBuilder()
    arg = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [arg]):
        with builder.dataflow():
            moved = builder.emit(relax.op.add(arg, relax.const(1.0, "float32")))
            made = [builder.emit(f(moved, axis=axis)) for f in (relax.op.max, relax.op.min, relax.op.sum)]
            outputs = [builder.emit_output(r) for r in made]
        builder.emit_func_output(relax.Tuple(outputs))
    mod = builder.get()
    if kind == "cuda":
        results = run_cuda(mod, [x], target=CUDA, relax_pipeline=pipeline(CUDA, STRICT)).check().outputs
    else:
        target = tvm.target.Target("llvm")
        vm = relax.VirtualMachine(
            tvm.compile(mod, target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
        )
        results = [r.numpy() for r in vm["main"](tvm.runtime.tensor(x))]
    wide = x.astype("float64") + 1
    with np.errstate(invalid="ignore"):
        for result, f in zip(results, (np.max, np.min, np.sum), strict=True):
            np.testing.assert_allclose(result, f(wide, axis=axis), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_sums_wrap_around_before_they_are_read(kind: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(5).integers(limits.min, limits.max, (6, 130), dtype=dtype, endpoint=True)
    builder = relax.BlockBuilder()
    arg = relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [arg]):
        with builder.dataflow():
            total = builder.emit(relax.op.sum(arg, axis=1, keepdims=True))
            outputs = [
                builder.emit_output(relax.op.astype(total, "float64")),
                builder.emit_output(relax.op.less(builder.emit(relax.op.add(arg, total)), arg)),
            ]
        builder.emit_func_output(relax.Tuple(outputs))
    mod = builder.get()
    if kind == "cuda":
        results = run_cuda(mod, [x], target=CUDA, relax_pipeline=pipeline(CUDA, STRICT)).check().outputs
    else:
        target = tvm.target.Target("llvm")
        vm = relax.VirtualMachine(
            tvm.compile(mod, target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
        )
        results = [r.numpy() for r in vm["main"](tvm.runtime.tensor(x))]
    want = x.sum(1, keepdims=True, dtype=dtype)
    np.testing.assert_array_equal(results[0], want.astype("float64"))
    np.testing.assert_array_equal(results[1], x + want < x)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_of_any_bits_stays_in_bfloat16(kind: str, dtype: str) -> None:
    bits = {
        "float32": [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0xFFFF8001, 0x7FC00000, 0x7F800001],
        "float16": [0x7FFF, 0xFFFF],
    }
    x = np.array(bits[dtype], dtype=f"uint{dtype[5:]}").view(dtype)
    x = np.concatenate([x, np.array([np.inf, -np.inf, 3e4, 1.5], "float32").astype(dtype)])
    builder = relax.BlockBuilder()
    arg = relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [arg]):
        with builder.dataflow():
            double = builder.emit(relax.op.add(arg, arg))
            output = builder.emit_output(relax.op.astype(double, "bfloat16"))
        builder.emit_func_output(output)
    mod = builder.get()
    if kind == "cuda":
        (result,) = run_cuda(mod, [x], target=CUDA, relax_pipeline=pipeline(CUDA, STRICT)).check().outputs
    else:
        target = tvm.target.Target("llvm")
        vm = relax.VirtualMachine(
            tvm.compile(mod, target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
        )
        result = vm["main"](tvm.runtime.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            result.astype("float32"), (x + x).astype(result.dtype).astype("float32")
        )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_that_are_known_wrap_around(dtype: str) -> None:
    """A padding is a number in a part of the output, and so is arithmetic on it."""
    most = int(np.iinfo(dtype).max)
    x = np.array([1, 2, most], dtype)
    builder = relax.BlockBuilder()
    arg, number = relax.Var("x", relax.TensorType((3,), dtype)), relax.const(np.array(most, dtype), dtype)
    with builder.function("main", [arg]):
        with builder.dataflow():
            ones = builder.emit(relax.op.nn.pad(arg, [2, 3], "constant", 1))
            less = builder.emit(relax.op.subtract(ones, number))
            sums = builder.emit(relax.op.add(less, less))
            products = builder.emit(relax.op.multiply(ones, number))
            both = builder.emit(relax.op.add(products, products))
            output = builder.emit_output(relax.Tuple([less, sums, products, both]))
        builder.emit_func_output(output)
    target = tvm.target.Target("llvm")
    vm = relax.VirtualMachine(
        tvm.compile(builder.get(), target, relax_pipeline=pipeline(target, STRICT)), tvm.cpu()
    )
    padded = np.pad(x, (2, 3), constant_values=1)
    with np.errstate(all="ignore"):
        less, products = padded - x[2], padded * x[2]
        wanted = [less, less + less, products, products + products]
    for result, want in zip(vm["main"](tvm.runtime.tensor(x)), wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), want)


@pytest.mark.parametrize("stitched", [True, False])
@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize(
    ("dtype", "to"), [("uint8", "int8"), ("uint16", "int16"), ("int32", "uint16"), ("int64", "int32")]
)
def test_a_cast_to_what_does_not_hold_it_wraps_around(kind: str, dtype: str, to: str, stitched: bool) -> None:
    """TVM takes a cast number for the same number: never negative where the other one is not."""
    builder = relax.BlockBuilder()
    arg = relax.Var("x", relax.TensorType((6,), dtype))
    with builder.function("main", [arg]):
        with builder.dataflow():
            bounded = builder.emit(relax.op.maximum(arg, relax.const(0, dtype)))
            cast = builder.emit(relax.op.astype(bounded, to))
            quotient = builder.emit(relax.op.floor_divide(cast, relax.const(7, to)))
            output = builder.emit_output(relax.op.less(quotient, relax.const(0, to)))
            both = builder.emit_output(relax.Tuple([quotient, output]))
        builder.emit_func_output(both)
    target = CUDA if kind == "cuda" else tvm.target.Target("llvm")
    passes = pipeline(target, STRICT) if stitched else left_to_tvm(target)
    most = int(np.iinfo(dtype).max)
    x = np.array([most, most - 8, most // 2 + 9, most // 2, 3, 0], dtype)
    if kind == "cuda":
        results = list(run_cuda(builder.get(), [x], target=target, relax_pipeline=passes).check().outputs)
    else:
        executable = tvm.compile(builder.get(), target, relax_pipeline=passes)
        made = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        results = [r.numpy() for r in made]
    wanted = x.astype(to) // np.array(7, to)
    np.testing.assert_array_equal(results[0], wanted)
    np.testing.assert_array_equal(results[1], wanted < 0)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_shifts_of_64_bits_by_many_are_stitched(kind: str) -> None:
    """TVM's bounds of an index, and its computing in 32 bits what fits there, do not get at them."""
    n = symbol("n")

    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        index = emit(R.arange(0, n, 1, dtype="int64"))
        wide = emit(R.astype(x, "int64"))
        left = emit(R.left_shift(index, relax.const(61, "int64")))
        return [left, R.right_shift(wide, relax.const(36, "int64")), R.add(left, y)]

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm") if kind == "cuda" else "llvm"
    recorder = Recorder()
    pipeline(target, None, recorder)(build(body, ((5, 7), "uint8"), ((n,), "int64")))
    assert recorder.plans and not recorder.declined


def doubled(passes: Any) -> np.ndarray:
    """Twice 200 in eight bits, as a float."""
    mod = helpers.build(lambda emit, x: R.astype(emit(R.add(x, x)), "float32"), ((4,), "uint8"))
    return np.asarray(faults.on_gpu(mod, [np.full(4, 200, "uint8")], passes).outputs[0])


def test_fault() -> None:
    faults.needed(bool((doubled(None) == 400).all()), "tir/arithmetic.py")


def test_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (doubled(faults.ours(CUDA)) == 144).all()
    monkeypatch.setattr(DeviceArithmetic, "wrapped", lambda self, node, a, b: node(a, b))
    assert (doubled(faults.ours(CUDA)) == 400).all()
