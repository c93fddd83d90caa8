# SPDX-License-Identifier: Apache-2.0
"""Notes belong to the operator that a kernel computes, and to all calls of one function."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tvm_stitch.relax.report.kernel_calls import Call
from tvm_stitch.relax.report.notes import COMPUTE, LIBRARY, OWN, Notes, kinds_of, suits
from tvm_stitch.relax.rewriting.marked_names import marked
from tvm_stitch.report.data import SourceOperator, Value
from tvm_stitch.report.flow import FlowNode

A, B, C = (marked("lv", i) for i in (1, 2, 3))


def call(function: str, result: str, *, external: bool = False, own: bool = False, tvm: bool = False) -> Call:
    results = [Value(result, "4", "float32", 16)]
    return Call("main", function, external, own, not (external or own or tvm), results=results)


def node(value: str, function: str, kind: str = COMPUTE, reason: str = COMPUTE) -> FlowNode:
    return FlowNode((value,), function, kind, reason, ())


def noted(
    computed: dict[str, str],
    calls: Sequence[Call],
    nodes: Sequence[Sequence[FlowNode]] = (),
    members: Sequence[Sequence[str]] = (),
    left: dict[str, str] | None = None,
) -> list[str]:
    operators = [
        [SourceOperator(name, "", "", "4", "float32", (), ()) for name in names]
        for names in members or [()] * len(calls)
    ]
    found = Notes(computed, left or {})
    return found.of_calls(calls, kinds_of(calls, ()), nodes or [()] * len(calls), operators)


def test_kinds_depend_on_the_function_alone() -> None:
    calls = [
        call("a", A),
        call("b", B, tvm=True),
        call("c", C, external=True),
        call("d", A, own=True),
        call("e", A),
    ]
    assert kinds_of(calls, ["e"]) == ["compute", "tvm", "library", "compute", "stitched"]


def test_a_decision_is_about_the_value_that_a_kernel_writes() -> None:
    computed = {f"attention {A}": "heads", f"matmul {B}": "sizes", f"conv2d {C}": "tiles"}
    calls = [call("attention", A, own=True), call("fused_matmul_add", B), call("convolution", C, own=True)]
    assert noted(computed, calls) == ["heads", "sizes", "tiles"]
    assert noted(computed, [call("attention", "lv", own=True), call("matmul", marked("lv", 9))]) == [
        "our kernel",
        "TVM",
    ]


def test_a_decision_of_another_kind_is_never_taken() -> None:
    computed = {f"attention {A}": "heads", f"conv2d {A}": "tiles"}
    inside = [[node(A, "matmul")]]
    assert noted(computed, [call("fused_matmul_add", A)], inside, [[A]]) == ["TVM"]
    assert noted({f"matmul {A}": "sizes"}, [call("attention", A, own=True)], inside, [[A]]) == ["our kernel"]
    assert noted({"3 matmuls": "no library"}, [call("convolution", A, own=True)], inside) == ["our kernel"]


def test_a_product_on_the_way_tells_what_computes_the_kernel() -> None:
    """The function's name may have left the product out: it has the first operators and the last."""
    function = "fused_cast_add_multiply_x3_relu"
    inside = [[node(A, "matmul"), node(B, "relu", "memory-intensive", "")]]
    assert noted({f"matmul {A}": "sizes"}, [call(function, B)], inside) == ["sizes"]
    assert noted({"3 matmuls": "no library"}, [call(function, B)], inside) == ["no library"]


def test_the_nearest_operator_of_the_model_counts() -> None:
    computed = {f"conv2d {A}": "first", f"conv2d {B}": "second"}
    assert noted(computed, [call("convolution", "lv", own=True)], members=[[A, B]]) == ["second"]


def test_attention_in_pieces_is_told_of_products_that_have_no_note() -> None:
    why = "its products and softmax one by one: the scores are read elsewhere"
    assert noted({f"attention {A}": why}, [call("matmul", A)]) == [why]
    assert noted({f"attention {A}": why, f"matmul {A}": "sizes"}, [call("matmul", A)]) == ["sizes"]


def test_equal_calls_have_the_surest_note_of_any() -> None:
    calls = [
        call("attention", "lv", own=True),
        call("attention", A, own=True),
        call("attention", B, own=True),
    ]
    assert noted({f"attention {A}": "heads"}, calls) == ["heads"] * 3
    assert noted({f"attention {A}": "heads", f"attention {B}": "other"}, calls) == ["heads; other"] * 3


def test_calls_of_a_librarys_function_are_not_equal() -> None:
    calls = [
        call("a.matmul", A, external=True),
        call("a.matmul", B, external=True),
        call("a.matmul", C, external=True),
    ]
    assert noted({f"matmul {A}": "one", f"matmul {B}": "two"}, calls) == [
        "one", "two", "a function outside the module",
    ]  # fmt: skip


@pytest.mark.parametrize("function", ["matmul1", "matmul1_tiled"])
def test_a_template_is_noted_by_its_function(function: str) -> None:
    computed = {f"matmul {A}": "of the value", "matmul1": "our template"}
    assert noted(computed, [call(function, A, own=True)]) == ["our template"]


def test_kernels_left_to_tvm_tell_reasons_of_their_own_operators() -> None:
    inside = [
        node(A, "attention", "opaque", OWN),
        node(B, "m", "opaque", LIBRARY),
        node(C, "matmul"),
        node(C, "sort", "", ""),
    ]
    left = [call("sort", C, tvm=True), call("sort", "lv", tvm=True)]
    assert noted({}, left, [inside, []], left={"sort": "it holds SeqStmt"}) == ["it holds SeqStmt"] * 2


@pytest.mark.parametrize(
    ("kind", "how", "function", "fits"),
    [
        ("attention", "our kernel: 3 heads of 64", "attention_1", True),
        ("attention", "our kernel: 3 heads of 64", "fused_matmul1_add3", False),
        ("matmul", "cuBLASLt", "tvm_stitch.cublaslt.matmul", True),
        ("matmul", "cuBLASLt", "tvm_stitch.cudnn.convolution", False),
        ("conv2d_transpose", "cuDNN", "tvm_stitch.cudnn.convolution", True),
        ("topk", "our kernel: 8 of 50 elements", "topk", True),
        ("recurrent layer", "our kernel: lstm of 8 units", "lstm_kernel", True),
        ("recurrent layer", "our kernel: lstm of 8 units", "matmul", False),
        ("fourier transform", "our kernel: 64 numbers, radices 8 x 8", "fourier_half_kernel", True),
        ("fourier transform", "our kernel: 64 numbers, radices 8 x 8", "matmul", False),
        ("fourier transform", "matmuls: a factor is a matmul", "matmul2", True),
        ("", "multiplied as float32: no weight", "conv2d", True),
        ("", "multiplied as float32: no weight", "softmax", False),
        ("12", "TVM: no library", "matmul", False),
    ],
)  # fmt: skip
def test_kinds_of_kernels(kind: str, how: str, function: str, fits: bool) -> None:
    assert suits(kind, how, function) is fits
