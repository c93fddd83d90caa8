# SPDX-License-Identifier: Apache-2.0
"""Kernels, their operators and the edges between them, from whole modules."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS

from tests.graph.helpers import build, symbol
from tvm_stitch import Report, explain
from tvm_stitch.config import StitchConfig
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.importers.onnx.compare import load_onnx
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.report import explain as explaining
from tvm_stitch.report.data import ModelReport
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

F32 = "float32"


@functools.cache
def bert(target: str) -> Report:
    proto = build_bert(BertConfig(layers=3, hidden=64, heads=2, sequence=16, ffn=128, vocabulary=64))
    return explain(load_onnx(proto, names=True).mod, target)


def model(report: Report) -> ModelReport:
    assert report.model is not None
    return report.model


def names(report: ModelReport, kernel: int) -> list[str]:
    return [report.operators[o].source for o in report.kernels[kernel].operators]


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_every_operator_is_in_a_kernel_or_a_view(target: str) -> None:
    found = model(bert(target))
    assert {o.operator for o in found.operators if not o.kernels} <= {"reshape"}
    assert all(k.operators for k in found.kernels)
    assert all(o.source for o in found.operators), "a node of ONNX for each"
    for i, kernel in enumerate(found.kernels):
        assert all(i in found.operators[o].kernels for o in kernel.operators)


def test_kernels_have_the_operators_that_they_compute() -> None:
    found = model(bert("llvm"))
    first = found.kernels[0].function
    (norm,) = {k.function for k in found.kernels if k.function.endswith("layer_norm")} - {first}
    at = [i for i, k in enumerate(found.kernels) if k.function == norm]
    assert names(found, at[0]) == [
        "layer0.attention.output.out", "layer0.attention.residual", "layer0.attention.norm.out",
    ]  # fmt: skip
    assert names(found, at[-1])[-1] in ("layer2.ffn.norm.out", "last_hidden_state")
    assert [(r.count, r.first > 0) for r in found.repeats] == [(3, True)]


def test_a_joined_product_has_the_operators_of_all_its_parts() -> None:
    found = model(bert("cuda"))
    assert names(found, 1) == [
        f"layer0.attention.{part}"
        for of in ("query", "key", "value")
        for part in (f"{of}.matmul", f"{of}.out")
    ]
    (edge,) = [e for e in found.edges if e.producer == 1]
    assert [v.name.split("__and__") for v in edge.values] == [
        [found.operators[o].name for o in found.kernels[1].operators[1::2]]
    ]


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_edges_follow_the_values(target: str) -> None:
    found = model(bert(target))
    assert all(e.producer < e.consumer for e in found.edges)
    for edge in found.edges:
        read = {v.name for v in found.kernels[edge.consumer].operands}
        assert edge.values and {v.name for v in edge.values} <= read
        assert edge.reasons and all(r.text for r in edge.reasons)
    fed = {e.consumer for e in found.edges}
    assert fed == {i for i, k in enumerate(found.kernels) if any(v.origin == "kernel" for v in k.operands)}


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_totals_are_those_that_are_counted(target: str) -> None:
    report = bert(target)
    completed = report.completed()
    mod = load_onnx(
        build_bert(BertConfig(layers=3, hidden=64, heads=2, sequence=16, ffn=128, vocabulary=64))
    ).mod
    stock, own = count_kernels(mod, target), count_kernels(mod, target, pipeline(target))
    assert completed.stock is not None
    assert (completed.stock.kernels, completed.stock.memory) == (stock.total, stock.memory_intensive)
    assert (completed.stitched.kernels, completed.stitched.memory) == (own.total, own.memory_intensive)
    assert isinstance(completed.stitched.bytes, int) and isinstance(completed.stock.bytes, int)
    assert completed.stitched.bytes < completed.stock.bytes
    assert json.dumps(completed.to_dict())


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_reshapes_by_themselves_are_no_kernels_of_tvms(target: str) -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return emit(R.matmul(emit(R.reshape(emit(R.matmul(x, w)), (8, 16))), w))

    mod = build(body, ((4, 2, 16), "float32"), ((16, 16), "float32"))
    stock = explain(mod, target).completed().stock
    assert stock is not None and (stock.kernels, stock.memory) == (2, 0)
    assert count_kernels(mod, tvm.target.Target("llvm")).total == 2


def test_sources_of_kernels() -> None:
    on_cpu, on_gpu = bert("llvm").completed().codes, bert("cuda").completed().codes
    assert {c.language for c in on_cpu.values()} == {"TIR"}
    norm = on_gpu["stitch_layer_norm"]
    assert norm.language == "CUDA C" and "__global__" in norm.text
    assert on_cpu.keys() == {k.function for k in model(bert("llvm")).kernels}
    assert not any("__value" in c.text for c in [*on_cpu.values(), *on_gpu.values()])


def test_nothing_tells_of_the_marks() -> None:
    report = bert("llvm")
    assert "__value" not in report.to_html() + report.verbose() + str(report) + json.dumps(report.to_trace())


def test_values_that_passes_number_like_the_importer() -> None:
    """The norm's tuple becomes a value of a stitched kernel, and the product's result one of TVM's fusion."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.matmul(x, w))
        parts = emit(R.split(y, 2, axis=1))
        return [R.add(emit(R.exp(parts[0])), parts[1]), R.argsort(y, -1)]

    report = explain(build(body, ((16, 24), F32), ((24, 32), F32)), "llvm")
    found = model(report)
    placed = {o.operator: {found.kernels[k].function for k in o.kernels} for o in found.operators}
    assert all(placed.values())
    assert placed["exp"] == placed["add"] and placed["argsort"] != placed["exp"]


def test_kernels_of_symbolic_shapes() -> None:
    n = symbol("n")
    report = explain(build(lambda emit, x, y: R.exp(emit(R.add(x, y))), ((n, 8), F32), ((n, 8), F32)), "cuda")
    (kernel,) = model(report).kernels
    assert kernel.seconds is None and "n" in str(kernel.bytes_moved)
    assert kernel.operands[0].shape == "n, 8" and kernel.operands[0].origin == "parameter"
    assert report.to_html() and report.to_trace()["traceEvents"][-1]["dur"] == 0


def test_branches_and_several_functions() -> None:
    @I.ir_module
    class Module:
        @RS.function
        def main(x: RS.Tensor((8, 8), "float32"), c: RS.Tensor((), "bool")) -> RS.Tensor((8, 8), "float32"):
            if c:
                y = RS.exp(x)
            else:
                y = RS.negative(x)
            return y

        @RS.function
        def other(x: RS.Tensor((8, 8), "float32")) -> RS.Tensor((8, 8), "float32"):
            with RS.dataflow():
                y = RS.tanh(x)
                RS.output(y)
            return y

    found = model(explain(Module, "llvm"))
    placed = {o.operator: len(o.kernels) for o in found.operators}
    assert placed == {"exp": 1, "negative": 1, "tanh": 1} and len(found.kernels) == 3


def test_places_in_files_are_no_names() -> None:
    @I.ir_module
    class Module:
        @RS.function
        def main(x: RS.Tensor((8, 8), "float32")) -> RS.Tensor((8, 8), "float32"):
            with RS.dataflow():
                y = RS.tanh(x)
                RS.output(y)
            return y

    assert [o.label for o in model(explain(Module, "llvm")).operators] == ["tanh y"]


def test_the_module_may_be_empty() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), F32))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    report = explain(builder.get(), tvm.target.Target("llvm"))
    assert model(report).kernels == () and "0 kernels a call" in str(report)
    assert "<html" in report.to_html()


def test_a_kernel_that_no_stitch_op_takes_tells_why() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        parts = emit(R.split(x, [4], axis=1))
        return [emit(relax.TupleGetItem(parts, i)) for i in (0, 1)]

    report = explain(build(body, ((64, 10), F32)), "llvm")
    (kernel,) = model(report).kernels
    assert kernel.kind == "tvm" and kernel.note == report.left["split"]
    assert kernel.note == "outputs of 256 and 384 elements without a common row"


def test_a_function_that_only_reshapes_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM makes a view of it behind the planning passes, which leave it where a template reads what it gives."""
    left = [relax.transform.LegalizeOps()]
    monkeypatch.setattr(explaining, "planning_passes", lambda *_: left)

    def body(emit: Any, x: Any) -> list[Any]:
        return [R.exp(emit(R.reshape(emit(R.nn.softmax(x)), (24,))))]

    mod = build(body, ((4, 6), F32))
    assert "reshape" in left[0](mod).script()
    assert [kernel.function for kernel in model(explain(mod, "llvm")).kernels] == ["softmax", "tir_exp"]


@pytest.mark.parametrize("target", ["llvm", "cuda -arch=sm_90"])
@pytest.mark.parametrize(("compute", "told"), [("auto, convolution=tvm", 1), ("matmul=tvm", 1), ("tvm", 2)])
def test_what_is_asked_of_tvm_is_told_so(compute: str, told: int, target: str) -> None:
    """Not that the layout, which was left for that, has no template."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, relax.const(np.ones((8, 4, 3, 3), F32)), padding=1))
        return emit(R.matmul(emit(R.reshape(y, [8, 64])), relax.const(np.ones((64, 8), F32))))

    report = explain(build(body, ((1, 4, 8, 8), F32)), target, StitchConfig(compute=compute))
    notes = [k.note for k in model(report).kernels]
    assert list(report.computed.values()).count("TVM: TVM's schedules are asked for") == told
    assert [note for note in notes if note].count("TVM: TVM's schedules are asked for") == told


@pytest.mark.parametrize(("barriers", "name"), [(True, "convolution_added_up"), (False, "convolution")])
def test_a_kernel_of_ours_is_not_credited_to_tvm(barriers: bool, name: str) -> None:
    """No value of the model is its result if its sums are divided, and added up elsewhere."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.nn.conv2d(x, relax.const(np.ones((128, 128, 3, 3), F32)), padding=1))
        return emit(R.nn.conv2d(y, relax.const(np.ones((8, 16, 3, 3), F32)), groups=8))  # TVM's

    config = StitchConfig(grid_barriers=barriers)
    found = model(explain(build(body, ((1, 128, 14, 14), F32)), "cuda", config)).kernels
    (own,) = (k for k in found if k.function == name)
    assert own.note.startswith("our kernel")
