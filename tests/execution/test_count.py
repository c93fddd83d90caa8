# SPDX-License-Identifier: Apache-2.0
"""The kernel counter against what a virtual machine really calls and what the CUDA source really holds."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from tvm_stitch.execution.count import count_kernels, is_compute_intensive
from tvm_stitch.execution.runner import Runner
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

CPU = Target("llvm")
GPU = Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
SMALL = BertConfig(layers=2, hidden=32, heads=4, sequence=12, ffn=64, vocabulary=50)


@pytest.fixture(scope="module")
def encoder() -> tvm.IRModule:
    return from_onnx(build_bert(SMALL))


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor((8, 32), "float32"), w: R.Tensor((64, 5), "float32")) -> R.Tensor((4, 5), "float32"):
        with R.dataflow():
            a = R.nn.softmax(x)
            b = R.reshape(a, (4, 64))
            c = R.nn.softmax(b)
            d = R.matmul(c, w)
            R.output(d)
        return d


@I.ir_module
class TwoSteps:
    """A PrimFunc with two results of different shapes, one from the other: two kernels on a GPU."""

    @T.prim_func(private=True, s_tir=True)
    def steps(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32"), z: T.Buffer((32, 7), "float32")):
        for i in range(64):
            with T.sblock("first"):
                vi = T.axis.spatial(64, i)
                y[vi] = x[vi] * T.float32(2)
        for i, j in T.grid(32, 7):
            with T.sblock("second"):
                vi, vj = T.axis.remap("SS", [i, j])
                z[vi, vj] = y[vi] + T.float32(1)

    @R.function
    def main(x: R.Tensor((64,), "float32")) -> R.Tuple(
        R.Tensor((64,), "float32"), R.Tensor((32, 7), "float32")
    ):
        cls = TwoSteps
        both = R.call_tir(cls.steps, (x,), out_ty=[R.Tensor((64,), "float32"), R.Tensor((32, 7), "float32")])
        return both


@I.ir_module
class Called:
    """A private function called twice, with one kernel in it."""

    @R.function(private=True)
    def inner(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        cls = Called
        a = cls.inner(x)
        b = cls.inner(a)
        return b


@I.ir_module
class Branches:
    @R.function
    def main(p: R.Tensor((), "bool"), x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        if p:
            a = R.sum(x, axis=0, keepdims=True)
            b = R.exp(a)
            y = R.add(b, x)
        else:
            y = R.exp(x)
        return y


def test_llvm_count_is_what_the_virtual_machine_calls(encoder: tvm.IRModule) -> None:
    count = count_kernels(encoder, CPU)
    executable = tvm.compile(encoder, CPU, relax_pipeline=relax.get_default_pipeline(CPU))
    called = Runner(executable, CPU, list(random_inputs(SMALL).values())).calls()
    assert list(count.names) == [name for name in called if not name.startswith("vm.builtin.")]
    assert count.compute_intensive == 8 * SMALL.layers
    assert count.memory_intensive == count.total - count.compute_intensive > 0


def test_stitched_count_is_what_the_virtual_machine_calls(encoder: tvm.IRModule) -> None:
    import tvm_stitch
    from tvm_stitch.relax import pipeline

    count = count_kernels(encoder, CPU, pipeline(CPU))
    runner = Runner(tvm_stitch.compile(encoder, target=CPU), CPU, list(random_inputs(SMALL).values()))
    called = [name for name in runner.calls() if not name.startswith("vm.builtin.")]
    assert list(count.names) == called
    assert (
        count.compute_intensive == 7 * SMALL.layers
    )  # attention is one kernel, of two products and a softmax
    assert count.total < count_kernels(encoder, CPU).total


def test_views_are_no_kernels() -> None:
    count = count_kernels(Chain, CPU)
    assert count.names == ("softmax", "softmax1", "matmul")
    assert (count.memory_intensive, count.compute_intensive, count.external) == (2, 1, 0)
    assert count.names_of("compute") == {"matmul"}


def test_cuda_counts_the_global_functions() -> None:
    assert count_kernels(TwoSteps, CPU).names == ("steps",)
    count = count_kernels(TwoSteps, GPU)
    assert count.names == ("steps_kernel", "steps_kernel_1")
    source = _cuda_source(TwoSteps)
    assert _kernels(source) == set(count.names)


def test_cuda_names_are_those_of_the_source(encoder: tvm.IRModule) -> None:
    count = count_kernels(encoder, GPU)
    assert _kernels(_cuda_source(encoder)) == set(count.names)
    assert count.compute_intensive == 8 * SMALL.layers


def test_functions_called_twice_count_twice() -> None:
    assert count_kernels(Called, CPU).names == ("tir_exp", "tir_exp")


def test_of_a_conditional_the_longer_branch_counts() -> None:
    longer = count_kernels(Branches, CPU).total
    executable = tvm.compile(Branches, CPU, relax_pipeline=relax.get_default_pipeline(CPU))
    for taken, fewer in ((True, 0), (False, longer - 1)):
        runner = Runner(executable, CPU, [np.array(taken), np.ones(8, "float32")])
        called = [name for name in runner.calls() if not name.startswith("vm.builtin.")]
        assert len(called) == longer - fewer


def test_an_unknown_entry_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no Relax function 'forward'.*main"):
        count_kernels(Chain, CPU, entry="forward")


def test_targets_as_everywhere() -> None:
    native = count_kernels(Chain, "native", pipeline("native"))
    assert native == count_kernels(Chain, resolve_target("native"), pipeline("native")) and native.total


def test_counts_as_data() -> None:
    data = count_kernels(Chain, CPU).to_dict()
    assert data == {
        "total": 3,
        "memory_intensive": 2,
        "compute_intensive": 1,
        "external": 0,
        "names": ["softmax", "softmax1", "matmul"],
    }


@T.prim_func(private=True, s_tir=True)
def weighted_row_sum(
    x: T.Buffer((8, 32), "float32"), g: T.Buffer((32,), "float32"), y: T.Buffer((8,), "float32")
):
    for i, k in T.grid(8, 32):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk] * g[vk]


@T.prim_func(private=True, s_tir=True)
def product_sum(
    x: T.Buffer((8, 32), "float32"), g: T.Buffer((8, 32), "float32"), y: T.Buffer((8,), "float32")
):
    for i, k in T.grid(8, 32):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk] * g[vi, vk]


@T.prim_func(private=True, s_tir=True)
def outer_contraction(
    x: T.Buffer((8, 32), "float16"), g: T.Buffer((4, 32), "float16"), y: T.Buffer((8, 4), "float32")
):
    for i, j, k in T.grid(8, 4, 32):
        with T.sblock("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(0)
            y[vi, vj] = y[vi, vj] + T.Cast("float32", x[vi, vk]) * T.Cast("float32", g[vj, vk])


def test_contractions_are_told_from_weighted_sums() -> None:
    assert is_compute_intensive(outer_contraction)
    assert not is_compute_intensive(product_sum, "fused_matmul")
    assert not is_compute_intensive(weighted_row_sum, "layer_norm")
    assert is_compute_intensive(weighted_row_sum, "matmul"), "a matrix-vector product, by its name"


def _kernels(source: str) -> set[str]:
    return set(re.findall(r"__global__ void\s+(?:__launch_bounds__\(.*?\)\s*)?(\w+)\(", source))


def _cuda_source(mod: tvm.IRModule) -> str:
    executable = tvm.compile(mod, GPU, relax_pipeline=relax.get_default_pipeline(GPU))
    pending, sources = [executable.mod], []
    while pending:
        module = pending.pop()
        pending += list(module.imports)
        if module.kind == "cuda":
            sources.append(module.inspect_source())
    assert sources
    return "\n".join(sources)
