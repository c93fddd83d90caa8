# SPDX-License-Identifier: Apache-2.0
"""Splits into parts of different sizes as slices, each read where it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, symbol
from tvm_stitch.relax.layout.unequal_splits import UnequalSplits

F32 = "float32"
X = ((3, 4, 10), F32)


def sliced(mod: tvm.IRModule) -> tvm.IRModule:
    return UnequalSplits()(mod)


def slice_of(x: Any, axis: int, begin: int, end: int) -> Any:
    return R.strided_slice(x, [axis], [begin], [end], assume_inbound=True)


def gated(emit: Any, x: Any, axis: int = -1) -> list[Any]:
    parts = emit(R.split(x, [4, 8], axis=axis))
    gate, value, rest = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
    return [R.multiply(emit(R.nn.silu(gate)), value), R.nn.softmax(rest)]


@pytest.mark.parametrize("axis", [2, -1])
def test_parts_are_slices(axis: int) -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        gate, value, rest = (emit(slice_of(x, axis, *ends)) for ends in ((0, 4), (4, 8), (8, 10)))
        return [R.multiply(emit(R.nn.silu(gate)), value), R.nn.softmax(rest)]

    mod = build(lambda emit, x: gated(emit, x, axis), X)
    tvm.ir.assert_structural_equal(sliced(mod), build(body, X))


def test_other_axes_may_be_symbolic() -> None:
    mod = sliced(build(gated, ((symbol("n"), 10), F32)))
    assert "split" not in mod.script() and mod.script().count("strided_slice") == 3


def unread(emit: Any, x: Any) -> list[Any]:
    emit(R.split(x, [4], axis=2))
    return [R.exp(x)]


def equal(emit: Any, x: Any) -> list[Any]:
    parts = emit(R.split(x, 2, axis=2))
    return [R.add(emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1)))]


def equal_by_places(emit: Any, x: Any) -> list[Any]:
    parts = emit(R.split(x, [5], axis=2))
    return [R.add(emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1)))]


def with_an_empty_part(emit: Any, x: Any) -> list[Any]:
    parts = emit(R.split(x, [0, 4], axis=2))
    return [emit(relax.TupleGetItem(parts, i)) for i in range(3)]


def read_whole(emit: Any, x: Any) -> list[Any]:
    return [R.concat(emit(R.split(x, [4], axis=2)), axis=2)]


def of_products(emit: Any, x: Any) -> list[Any]:
    parts = emit(R.split(x, [4, 8], axis=2))
    left, right = (emit(relax.TupleGetItem(parts, i)) for i in (0, 1))
    weight = relax.const(np.ones((4, 4), F32))
    return [R.matmul(left, weight), R.matmul(right, weight)]


def of_results(emit: Any, x: Any) -> list[Any]:
    parts = emit(R.split(x, [4], axis=2))
    return [emit(relax.TupleGetItem(parts, i)) for i in (0, 1)]


@pytest.mark.parametrize(
    "body", [equal, equal_by_places, with_an_empty_part, read_whole, of_products, of_results, unread]
)
def test_others_stay(body: Any) -> None:
    mod = build(body, X)
    tvm.ir.assert_structural_equal(sliced(mod), mod)


def test_a_symbolic_axis_stays() -> None:
    mod = build(gated, ((3, symbol("n")), F32))
    tvm.ir.assert_structural_equal(sliced(mod), mod)


def test_one_part_that_a_product_reads_is_a_copy_as_before() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        parts = emit(R.split(x, [4, 8], axis=2))
        left, right, rest = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        made = emit(R.matmul(rest, relax.const(np.ones((2, 4), F32))))
        return [R.multiply(emit(R.multiply(left, right)), made)]

    mod = sliced(build(body, X))
    assert "split" not in mod.script()
    x = np.random.default_rng(3).standard_normal(X[0]).astype(F32)
    made = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    want = x[..., :4] * x[..., 4:8] * x[..., 8:].sum(-1, keepdims=True)
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)


def test_on_a_cpu_no_kernel_is_left_to_tvm() -> None:
    def body(emit: Any, x: Any, y: Any) -> list[Any]:
        parts = emit(R.split(emit(R.matmul(x, relax.const(np.ones((6, 10), F32)))), [4, 7], axis=2))
        gate, more, rest = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        joined = emit(R.concat([more, emit(R.matmul(y, relax.const(np.ones((3, 1), F32))))], axis=2))
        made = emit(R.multiply(emit(R.nn.silu(gate)), joined))
        return [R.add(made, emit(R.sum(rest, -1, True)))]

    mod = build(body, ((3, 4, 6), F32), ((3, 4, 3), F32))
    report = tvm_stitch.explain(mod, "llvm")
    assert report.model is not None
    assert [k.function for k in report.model.kernels if k.kind == "tvm"] == []
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(F32) for shape in ((3, 4, 6), (3, 4, 3))]
    run = relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())["main"]
    x, y = (a.astype("float64") for a in arrays)
    product = x.sum(-1, keepdims=True).repeat(10, -1)
    joined = np.concatenate([product[..., 4:7], y.sum(-1, keepdims=True)], -1)
    want = product[..., :4] / (1 + np.exp(-product[..., :4])) * joined + 3 * product[..., :1]
    made = run(*map(tvm.runtime.tensor, arrays)).numpy()
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)


def test_parts_that_another_block_reads_stay() -> None:
    """The split tensor is not seen there."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(*X))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit_output(R.split(builder.emit(R.exp(x)), [4], axis=2))
        with builder.dataflow():
            out = builder.emit_output(R.nn.softmax(builder.emit(relax.TupleGetItem(parts, 0))))
        builder.emit_func_output(out)
    mod = builder.get()
    tvm.ir.assert_structural_equal(sliced(mod), mod)
