# SPDX-License-Identifier: Apache-2.0
"""Products become calls of cuBLASLt that mean the same, or are left with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tests.relax import cublaslt_stand_in
from tests.relax.library.matmul_calls import (
    CUDA,
    F32,
    LIBRARIES,
    attention_scores,
    calls,
    check,
    draw,
    expected_scores,
    heads,
    mode,
    numbers,
    operators,
    rewritten,
    run,
)
from tvm_stitch import StitchConfig, explain
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.testing.workloads.cases import cases

pytestmark = pytest.mark.usefixtures("cublaslt_in_numpy")


MATMULS = [
    ((8,), (8,)), ((8,), (8, 5)), ((3, 8), (8,)), ((1, 1), (1, 1)), ((1, 8), (8, 5)), ((3, 8), (8, 1)),
    ((3, 1), (1, 5)), ((2, 3, 8), (8, 5)), ((2, 3, 4, 8), (8, 5)), ((2, 3, 8), (2, 8, 5)),
    ((2, 3, 4, 8), (2, 3, 8, 5)), ((1, 4, 8), (6, 8, 5)), ((6, 4, 8), (1, 8, 5)), ((4, 8), (6, 8, 5)),
    ((6, 1, 8), (6, 8, 5)), ((8,), (6, 8, 5)), ((6, 4, 8), (8,)), ((2, 3, 1, 8), (8, 5)), ((3, 4, 8), (2, 1, 8, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_any_rank(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(lambda emit, x, y: R.matmul(x, y), np.matmul, (left, F32), (right, F32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out", [None, F32])
def test_half_types(dtype: str, out: str | None) -> None:
    made = check(
        lambda emit, x, y: R.matmul(x, y, out_dtype=out), np.matmul, ((3, 8), dtype), ((8, 5), dtype)
    )
    assert str(made["main"].ret_ty.dtype) == (out or dtype)


def test_leading_axes_are_rows_where_the_right_side_is_a_weight() -> None:
    made = check(
        lambda emit, x, w: R.matmul(x, w),
        np.matmul,
        (("n", 3, 8), F32),
        ((8, 5), F32),
        sizes=(0, 1, 4),
        weights=1,
    )
    (call,) = calls(made)
    assert (numbers(call), mode(call)) == (["n * 3", "5", "8", "1", "8", "5", "5", "0", "0", "0"], "")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((24, "n"), ("n", 40)),
        ((16, 40), (40, "n")),
        (("n", 5, 8), ("n", 8, 3)),
        (("n", "n"), ("n", "n")),
        (("n",), ("n",)),
    ],
)
def test_symbolic_extents(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    check(lambda emit, x, y: R.matmul(x, y), np.matmul, (left, F32), (right, F32), sizes=(0, 1, 2, 7))


def transposed(emit: Any, x: Any) -> Any:
    axes = list(range(x.ty.ndim))
    return emit(R.permute_dims(x, [*axes[:-2], axes[-1], axes[-2]]))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("sides", ["left", "right", "left right"])
def test_transposes_are_read_as_they_lie(batch: tuple[int, ...], sides: str) -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(
            transposed(emit, x) if "left" in sides else x, transposed(emit, y) if "right" in sides else y
        )

    def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (x.swapaxes(-1, -2) if "left" in sides else x) @ (
            y.swapaxes(-1, -2) if "right" in sides else y
        )

    left, right = ((8, 4) if "left" in sides else (4, 8)), ((5, 8) if "right" in sides else (8, 5))
    made = check(body, expected, ((*batch, *left), F32), ((*batch, *right), F32))
    assert operators(made) == ["call_dps_packed"]
    assert mode(calls(made)[0]).split() == [f"{side}_transposed" for side in sides.split()]


def test_a_weight_that_the_graph_transposes() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return R.matmul(x, emit(R.permute_dims(w)))

    made = check(body, lambda x, w: x @ w.T, (("n", 8), F32), ((5, 8), F32), sizes=(0, 1, 3), weights=1)
    assert operators(made) == ["call_dps_packed"]


def test_heads_of_one_sequence_are_a_batch_with_strides() -> None:
    made = check(
        attention_scores, expected_scores, ((1, "n", 3, 4), F32), ((1, 7, 3, 4), F32), sizes=(0, 1, 5)
    )
    assert operators(made) == ["call_dps_packed"]
    assert numbers(calls(made)[0]) == ["n", "7", "4", "3", "12", "12", "7", "4", "4", "n * 7"]


def test_heads_of_several_sequences_stay_permuted() -> None:
    made = check(attention_scores, expected_scores, ((2, 5, 3, 4), F32), ((2, 7, 3, 4), F32))
    assert operators(made) == ["permute_dims", "permute_dims", "call_dps_packed"]
    assert mode(calls(made)[0]) == "right_transposed"


def test_what_importers_wrap_products_in() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        left = emit(R.reshape(emit(R.broadcast_to(x, (2, 3, 4, 8))), (6, 4, 8)))
        right = emit(R.reshape(emit(R.broadcast_to(transposed(emit, y), (2, 3, 8, 5))), (6, 8, 5)))
        return R.reshape(emit(R.matmul(left, right)), (2, 3, 4, 5))

    made = check(body, lambda x, y: x @ y.swapaxes(-1, -2), ((2, 3, 4, 8), F32), ((2, 3, 5, 8), F32))
    assert operators(made) == ["call_dps_packed", "reshape"]


def test_a_broadcast_side_is_read_once_a_batch() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(x, emit(R.broadcast_to(y, (6, 8, 5))))

    made = check(body, lambda x, y: x @ y, ((6, 4, 8), F32), ((1, 8, 5), F32))
    assert operators(made) == ["call_dps_packed"] and numbers(calls(made)[0])[0] == "24"


@pytest.mark.parametrize(
    ("left", "right"),
    [((6, 1), (8, 5)), ((6, 8), (1, 5)), ((1, 1), (8, 5)), ((3, 6, 1), (3, 8, 5))],
    ids=["left", "right", "row", "batch"],
)
def test_what_is_repeated_along_the_depth_is_written(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """The library reads as many elements as are summed over."""
    wide = (*left[:-1], 8), (*right[:-2], 8, 5)

    def body(emit: Any, x: Any, y: Any) -> Any:
        x, y = (emit(R.broadcast_to(v, s)) for v, s in zip((x, y), wide, strict=True))
        return R.matmul(x, y)

    def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, wide[0]) @ np.broadcast_to(y, wide[1])

    made = check(body, expected, (left, F32), (right, F32))
    assert "broadcast_to" in operators(made)


def test_a_view_is_not_looked_through_where_its_source_is_out_of_sight() -> None:
    """A dataflow variable is none outside its block."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 4], F32))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(R.exp(x))
            turned = builder.emit_output(R.permute_dims(hidden))
        between = builder.emit(R.negative(x))
        with builder.dataflow():
            out = builder.emit_output(R.add(builder.emit(R.matmul(turned, turned)), between))
        builder.emit_func_output(out)
    made, _ = rewritten(builder.get())
    relax.analysis.well_formed(made)  # raises what is wrong
    a = draw((4, 4))
    np.testing.assert_allclose(run(made, a), np.exp(a).T @ np.exp(a).T - a, 1e-5)


def test_an_operand_with_other_readers_stays() -> None:
    def body(emit: Any, x: Any) -> list[Any]:
        turned = transposed(emit, x)
        return [emit(R.matmul(x, turned)), emit(R.exp(turned))]

    mod = build(body, ((4, 8), F32))
    made, _ = rewritten(mod)
    assert sorted(operators(made)) == ["call_dps_packed", "exp", "permute_dims"]


def test_heads_are_merged_by_the_product() -> None:
    """The values of one sequence: stored as the next product reads them."""

    def body(emit: Any, p: Any, v: Any) -> Any:
        return R.reshape(heads(emit, emit(R.matmul(p, heads(emit, v)))), (1, 5, 12))

    def expected(p: np.ndarray, v: np.ndarray) -> np.ndarray:
        return np.einsum("bhst,bthd->bshd", p, v).reshape(1, 5, 12)

    made = check(body, expected, ((1, 3, 5, 7), F32), ((1, 7, 3, 4), F32))
    assert operators(made) == ["call_dps_packed", "reshape"]
    assert numbers(calls(made)[0]) == ["5", "4", "7", "3", "7", "12", "12", "35", "4", "4"]


def test_a_transposed_result_swaps_the_sides() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return transposed(emit, emit(R.matmul(x, transposed(emit, y))))

    made = check(
        body, lambda x, y: (x @ y.swapaxes(1, 2)).swapaxes(1, 2), ((2, "n", 8), F32), ((2, 5, 8), F32),
        sizes=(0, 1, 3),
    )  # fmt: skip
    assert operators(made) == ["call_dps_packed"] and mode(calls(made)[0]) == "right_transposed"
    assert numbers(calls(made)[0])[:3] == ["5", "n", "8"]


def test_a_product_that_another_one_reads_as_it_lies_is_not_permuted_for_it() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return R.matmul(transposed(emit, emit(R.matmul(x, y))), x)

    made = check(body, lambda x, y: (x @ y).T @ x, ((4, 8), F32), ((8, 5), F32), products=2)
    assert [mode(c) for c in calls(made)] == ["", "left_transposed"]


def test_tensor_float_is_only_used_where_it_is_asked_for() -> None:
    mod = build(lambda emit, x: R.matmul(x, x), ((4, 4), F32))
    half = build(lambda emit, x: R.matmul(x, x), ((4, 4), "float16"))
    asked = StitchConfig(compute="libraries", tf32=True)
    modes = [mode(calls(rewritten(m, config=c)[0])[0]) for m in (mod, half) for c in (LIBRARIES, asked)]
    assert modes == ["", "tf32", "", ""]


@pytest.mark.parametrize(("rows", "word"), [(4, "timed"), (symbol(), "")])
def test_algorithms_of_static_shapes_are_timed(rows: Any, word: str) -> None:
    mod = build(lambda emit, x, w: R.matmul(x, w), ((rows, 4), F32), ((4, 4), F32))
    assert str(calls(rewritten(mod)[0])[0].args[1].fields[-1].value) == word


def test_a_whole_model_compiles_for_a_gpu_with_products_between_stitch_ops() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        hidden = emit(R.nn.softmax(emit(R.matmul(x, w))))
        return emit(
            R.nn.layer_norm(emit(R.add(hidden, emit(R.matmul(hidden, w)))), w_row(w), w_row(w), axes=[-1])
        )

    def w_row(w: Any) -> Any:
        return relax.const(draw((8,)))

    mod = build(body, ((5, 8), F32), ((8, 8), F32))
    report = explain(mod, CUDA, LIBRARIES)
    assert len(report.kernels) == 2 and len(report.computed) == 2 and not report.left
    executable = tvm.compile(mod, CUDA, relax_pipeline=pipeline(CUDA, LIBRARIES))
    assert executable.as_text().count(f"call  {cublaslt_stand_in.NAME}") == 2


def test_products_are_captured_in_a_cuda_graph() -> None:
    def body(emit: Any, x: Any) -> Any:
        value = emit(R.exp(x))
        for _ in range(3):
            value = emit(R.exp(emit(R.matmul(value, value))))
        return value

    mod = build(body, ((8, 8), F32))
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        made = pipeline(CUDA, LIBRARIES)(mod)
    captured = [f for g, f in made.functions_items() if "cuda_graph_capture" in g.name_hint]
    assert captured and str(captured[0].script()).count(cublaslt_stand_in.NAME) == 3
    assert cublaslt_stand_in.NAME not in str(made["main"].script())


@pytest.mark.parametrize("scale", ["test", "cpu"])
def test_an_encoder_layer_has_its_kernels(scale: str) -> None:
    """Keys are read transposed, as heads lie: no kernel turns them, though the importer's permutations were one."""
    (case,) = (case for case in cases(scale) if case.name == "encoder_layer")
    counted = count_kernels(case.build(), CUDA, pipeline(CUDA, LIBRARIES))
    assert counted.memory_intensive == case.kernels, counted.names
    told = explain(case.build(), CUDA, config=LIBRARIES)
    assert "right side transposed" in str(told)
