# SPDX-License-Identifier: Apache-2.0
"""Calls that importers emit and TVM does not compile, or compiles to more than they are: mended, and still needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from tests.graph.helpers import LLVM, build, emulated, on_llvm, symbol
from tests.repairs import faults
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.repairs.legalize.mend import MendImports

INF = float("inf")


def clip(low: float, high: float) -> Callable[..., Any]:
    def body(emit: Any, x: Any) -> Any:
        return R.clip(x, tirx.FloatImm("float64", low), tirx.FloatImm("float64", high))

    return body


def mask(emit: Any, x: Any) -> Any:
    return R.add(x, emit(R.full((4, 6), relax.const(-INF, "float32"), "float32")))


def count(emit: Any, x: Any) -> Any:
    return R.cumsum(emit(R.greater(x, relax.const(0.0, "float32"))), 1)


N = symbol()


def differences(emit: Any, x: Any) -> Any:
    later = emit(R.strided_slice(x, [-1], [1], [7], [2]))
    return R.subtract(later, emit(R.strided_slice(x, [0, -1], [0, 0], [N, 6], [1, 2], assume_inbound=True)))


STOCK_FAILS = {
    "a slice along the last axis, counted from the end": (
        build(differences, ((N, 7), "float32")),
        "axis < src_tensor_dim",
    ),
    "clip of integers with an infinite bound": (build(clip(0, INF), ((4, 6), "int64")), "infinity"),
    "a tensor of infinities": (build(mask, ((4, 6), "float32")), "not iterable"),
    "a running sum of booleans": (build(count, ((4, 6), "float32")), "kDLFloat"),
}


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, INF, "int64"),
        (-INF, 2, "int32"),
        (-INF, INF, "int64"),
        (-1, 1.5, "float32"),
        (-INF, 0.5, "float16"),
    ],
)
def test_clips_are_right(run: Any, low: float, high: float, dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal((5, 7)) * 4).astype(dtype)
    (got,) = run(build(lambda emit, v: R.add(emit(clip(low, high)(emit, v)), v), (x.shape, dtype)), x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.clip(x, low, high).astype(dtype) + x)


def test_a_bound_that_the_type_does_not_hold_is_tvms() -> None:
    mod = build(clip(0.5, 3), ((4,), "int32"))
    tvm.ir.assert_structural_equal(MendImports()(mod), mod)


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_a_mask_of_infinities(run: Any) -> None:
    def body(emit: Any, x: Any, keep: Any) -> Any:
        infinite = emit(R.full((1, 6, 6), relax.const(-INF, "float32"), "float32"))
        masked = emit(R.add(x, emit(R.where(keep, relax.const(0.0, "float32"), infinite))))
        return R.nn.softmax(masked)

    rng = np.random.default_rng(0)
    x, keep = rng.standard_normal((2, 6, 6)).astype("float32"), np.tri(6, dtype=bool)
    mod = build(body, (x.shape, "float32"), (keep.shape, "bool"))
    (got,) = run(mod, x, keep)
    e = np.where(keep, np.exp(x.astype("float64")), 0)
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_booleans_are_counted_in_int64(run: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    (got,) = run(STOCK_FAILS["a running sum of booleans"][0], x)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, np.cumsum(x > 0, 1))


def last(emit: Any, x: Any) -> Any:
    return R.exp(emit(R.take(x, relax.const(-1, "int64"), axis=1, mode="fast")))


def test_tvm_still_reads_in_front_of_a_tensor() -> None:
    """The last of two columns is the first one of the row before, as TVM takes it."""
    x = np.arange(6, dtype="float32").reshape(3, 2)
    mod = build(
        lambda emit, v: R.take(v, relax.const(-1, "int64"), axis=1, mode="fast"), (x.shape, "float32")
    )
    executable = tvm.compile(mod, LLVM)
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got[1:], [1, 3])


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("length", [7, symbol()], ids=["static", "symbolic"])
def test_negative_indices_count_from_the_end(run: Any, length: Any) -> None:
    x = np.random.default_rng(2).standard_normal((3, 7, 4)).astype("float32")
    (got,) = run(build(last, ((3, length, 4), "float32")), x)
    np.testing.assert_allclose(got, np.exp(x[:, -1].astype("float64")), rtol=2e-6)


@pytest.mark.parametrize("run", [on_llvm, emulated])
def test_several_indices(run: Any) -> None:
    x = np.random.default_rng(3).standard_normal((3, 7)).astype("float32")
    places = np.array([[0, -7], [-1, 3]])
    mod = build(
        lambda emit, v: R.take(v, relax.const(places, "int64"), axis=1, mode="fast"), (x.shape, "float32")
    )
    np.testing.assert_array_equal(run(mod, x)[0], x[:, places])


def top(largest: bool, which: str, dtype: str = "int64") -> Callable[..., Any]:
    def body(emit: Any, x: Any) -> Any:
        found = emit(R.topk(x, 1, -1, which, largest, dtype))
        return (
            [relax.TupleGetItem(found, 0), relax.TupleGetItem(found, 1)]
            if which == "both"
            else R.add(found, found)
        )

    return body


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("which", ["both", "values", "indices"])
def test_the_first_of_a_row_is_a_reduction(run: Any, largest: bool, which: str) -> None:
    x = np.random.default_rng(1).standard_normal((5, 40)).astype("float32")
    mod = build(top(largest, which, "int32"), (x.shape, "float32"))
    place = (np.argmax if largest else np.argmin)(x, -1, keepdims=True)
    value = np.take_along_axis(x, place, -1)
    wanted = {"both": [value, place], "values": [2 * value], "indices": [2 * place]}[which]
    for got, want in zip(run(mod, x), wanted, strict=True):
        assert got.dtype in (np.float32, np.int32)
        np.testing.assert_array_equal(got, want)
    counted = count_kernels(mod, LLVM, pipeline(LLVM))
    assert counted.total == 1, counted.names


def test_more_than_one_of_a_row_is_sorted_by_tvm() -> None:
    mod = build(lambda emit, x: R.topk(x, 3, -1, "values"), ((5, 40), "float32"))
    tvm.ir.assert_structural_equal(MendImports()(mod), mod)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(
    ("body", "rows", "wanted"),
    [
        (differences, N, lambda x: x[:, 1::2] - x[:, :6:2]),
        (lambda emit, x: R.strided_slice(x, [-2, -1], [1, 0], [3, 7], [1, 3]), 4, lambda x: x[1:3, ::3]),
    ],
)
def test_slices_along_axes_counted_from_the_end(run: Any, body: Any, rows: Any, wanted: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 7)).astype("float32")
    (found,) = run(build(body, ((rows, 7), "float32")), x)
    np.testing.assert_array_equal(found, wanted(x))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.1, 1.0, 3.0])
def test_leaky_relus(run: Any, dtype: str, alpha: float) -> None:
    x = np.append(np.linspace(-5, 5, 37), [0, np.nan, np.inf, -np.inf, 1e-6]).astype(dtype)
    (found,) = run(build(lambda emit, x: R.nn.leakyrelu(x, alpha), (x.shape, dtype)), x)
    below = np.zeros_like(x) if alpha == 0 else x * np.asarray(alpha, dtype)
    wanted = np.where(np.isnan(x) | (x > 0), x, below)
    np.testing.assert_allclose(found, wanted, rtol=1e-6 if dtype == "float32" else 1e-3)


def convolutions(activation: Callable[[Any], Any]) -> tvm.IRModule:
    """Build two branches of one input, each a convolution with a bias, an activation and a convolution."""
    rng = np.random.default_rng(1)
    weight = relax.const(rng.standard_normal((8, 8, 3)).astype("float32"))
    bias = relax.const(rng.standard_normal((1, 8, 1)).astype("float32"))

    def body(emit: Any, x: Any) -> Any:
        branches = []
        for dilation in (1, 2):
            first = emit(R.nn.conv1d(x, weight, padding=dilation, dilation=dilation))
            active = emit(activation(emit(R.add(first, bias))))
            branches.append(emit(R.nn.conv1d(active, weight, padding=1)))
        return R.add(*branches)

    return build(body, ((1, 8, 64), "float32"))


def test_a_leaky_relu_is_computed_with_the_convolution_in_front() -> None:
    """As a ReLU is: with the layout not carried through it, it was a kernel between two transpositions."""
    counts = [
        count_kernels(convolutions(activation), LLVM, pipeline(LLVM)).total
        for activation in (lambda x: R.nn.leakyrelu(x, 0.1), R.nn.relu)
    ]
    assert counts == [4, 4]


def test_tvm_still_has_no_layout_rule_for_it() -> None:
    """When this fails, TVM has learnt it: take it out of ``MENDED``."""
    assert tvm.ir.Op.get("relax.nn.leakyrelu").get_attr("FRelaxInferLayout") is None


ROWS = symbol()


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("rows", [4, ROWS])
def test_concatenations_with_parts_of_no_elements(run: Any, rows: Any) -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        rest = emit(R.strided_slice(x, [1], [6], [9]))
        turned = emit(R.negative(x))
        return [R.concat([turned, rest], 1), R.concat([x, rest, turned], -1), R.concat([rest, rest], 1)]

    mod = build(body, ((rows, 6), "float32"))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
    whole, both, none = run(mod, x)
    np.testing.assert_array_equal(whole, -x)
    np.testing.assert_array_equal(both, np.concatenate([x, -x], 1))
    assert none.shape == (4, 0)
    assert "concat" not in MendImports()(build(lambda e, x: body(e, x)[:1], ((4, 6), "float32"))).script()


def test_tvm_still_divides_by_the_extent_of_such_a_part() -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.concat([x, emit(R.strided_slice(x, [1], [6], [9]))], 1)

    with pytest.raises(Exception, match="Divide by zero"):
        tvm.compile(build(body, ((4, 6), "float32")), emulated_target())


@pytest.mark.parametrize("name", STOCK_FAILS)
def test_fault(name: str) -> None:
    mod, message = STOCK_FAILS[name]
    try:
        tvm.compile(mod, LLVM)
        error = ""
    except Exception as err:
        error = str(err)
    faults.needed(message in error, f"legalize/mend.py's function for {name}")


@pytest.mark.parametrize("name", STOCK_FAILS)
def test_repair(name: str) -> None:
    mod, _ = STOCK_FAILS[name]
    assert tvm_stitch.compile(mod, LLVM)
    with faults.without("MendImports"):
        assert faults.raises(lambda: tvm_stitch.compile(mod, LLVM))


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize(
    "cut",
    [(3, 1, 1), (-1, -3, 1), (9, 12, 1), (2, 2, 3), (1, 3, -1), (6, 2, -2), (-9, 3, 1), (5, -(2**63), -1)],
)
def test_slices_that_may_be_empty(run: Any, cut: tuple[int, int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((4, 7)).astype("float32")
    begin, end, step = cut

    def body(emit: Any, x: Any) -> Any:
        part = emit(R.strided_slice(emit(R.exp(x)), [1], [begin], [end], [step]))
        return R.concat([emit(R.divide(part, relax.const(2.0))), x], 1)

    (found,) = run(build(body, (x.shape, "float32")), x)
    wanted = np.exp(x.astype("float64"))[:, begin:end:step] / 2
    np.testing.assert_allclose(found, np.concatenate([wanted, x], 1), rtol=2e-6)


@pytest.mark.parametrize("run", [on_llvm, emulated])
@pytest.mark.parametrize("cuts", [1, [], [0, 3], [2, 2], [4, 2], [3]])
def test_splits(run: Any, cuts: Any) -> None:
    """Into one part, into parts without elements, and at positions that fall."""
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")

    def body(emit: Any, x: Any) -> Any:
        made = emit(R.split(emit(R.exp(x)), cuts, 1))
        if not isinstance(made.ty, relax.TupleType):
            return R.divide(made, relax.const(2.0))
        parts = [emit(relax.TupleGetItem(made, k)) for k in range(len(made.ty.fields))]
        return R.concat([emit(R.divide(part, relax.const(2.0))) for part in parts], 1)

    mod = build(body, (x.shape, "float32"))
    (found,) = run(mod, x)
    places = [0, *([] if cuts == 1 else cuts), 6]
    wanted = np.concatenate([x[:, a:b] for a, b in zip(places, places[1:])], 1)
    np.testing.assert_allclose(found, np.exp(wanted.astype("float64")) / 2, rtol=2e-6)
    recorder = Recorder()
    tvm.compile(mod, LLVM, relax_pipeline=pipeline(LLVM, recorder=recorder))
    assert not recorder.declined
