# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators behind a matrix product are computed by cuBLASLt with it, or stay with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.relax.library.matmul_calls import (
    F32,
    Body,
    attention_scores,
    calls,
    check,
    draw,
    expected_scores,
    mode,
    operators,
    rewritten,
    run,
)
from tvm_stitch import StitchConfig

pytestmark = pytest.mark.usefixtures("cublaslt_in_numpy")


# -- what is computed with a product --------------------------------------------------------------------------
def relu(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(x))


EPILOGUES: dict[str, tuple[Body, Body]] = {
    "bias": (lambda emit, y, b, r: R.add(y, b), lambda y, b, r: y + b),
    "bias first": (lambda emit, y, b, r: R.add(b, y), lambda y, b, r: y + b),
    "relu": (lambda emit, y, b, r: R.nn.relu(y), lambda y, b, r: np.maximum(y, 0)),
    "residual": (lambda emit, y, b, r: R.add(r, y), lambda y, b, r: y + r),
    "bias relu": (lambda emit, y, b, r: R.nn.relu(emit(R.add(y, b))), lambda y, b, r: np.maximum(y + b, 0)),
    "bias residual": (lambda emit, y, b, r: R.add(emit(R.add(y, b)), r), lambda y, b, r: y + b + r),
    "bias residual relu": (
        lambda emit, y, b, r: relu(emit, emit(R.add(emit(R.add(b, y)), r))),
        lambda y, b, r: np.maximum(y + b + r, 0),
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("rows", [(4,), (2, 3), ("n",)])
def test_epilogues(name: str, rows: tuple[Any, ...]) -> None:
    body, expected = EPILOGUES[name]
    made = check(
        lambda emit, x, b, r, w: body(emit, emit(R.matmul(x, w)), b, r),
        lambda x, b, r, w: expected(x @ w, b, r),
        ((*rows, 8), F32), ((5,), F32), ((*rows, 5), F32), ((8, 5), F32), sizes=(0, 1, 6), weights=1,
    )  # fmt: skip
    assert operators(made) == ["call_dps_packed"]
    assert mode(calls(made)[0]).split() == [w for w in ("bias", "residual", "relu") if w in name]


def linear(emit: Any, x: Any, w: Any, b: Any) -> Any:
    """Build a linear layer of three axes like PyTorch's importer."""
    (*leading, inputs), outputs = (int(e) for e in x.ty.shape), int(w.ty.shape[1])
    flat = emit(R.reshape(x, (int(np.prod(leading)), inputs)))
    return emit(R.reshape(emit(R.add(b, emit(R.matmul(flat, w)))), (*leading, outputs)))


def test_an_epilogue_between_two_products() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return emit(R.add(emit(R.matmul(relu(emit, linear(emit, x, w, b)), w)), x))

    made = check(
        body, lambda x, w, b: np.maximum(x @ w + b, 0) @ w + x, ((2, 3, 8), F32), ((8, 8), F32), ((8,), F32),
        weights=2, products=2,
    )  # fmt: skip
    assert [mode(c) for c in calls(made)] == ["bias relu", "residual"]
    assert "add" not in operators(made) and "relu" not in operators(made)


def test_a_bias_before_heads_is_computed_where_they_need_no_kernel() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        batch, sequence, _ = (int(e) for e in x.ty.shape)
        split = emit(R.reshape(linear(emit, x, w, b), (batch, sequence, 2, 4)))
        return attention_scores(emit, split, split)

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        split = (x @ w + b).reshape(*x.shape[:2], 2, 4)
        return expected_scores(split, split)

    for batch, modes in ((1, ["bias", "right_transposed"]), (3, ["", "right_transposed"])):
        specs = ((batch, 5, 8), F32), ((8, 8), F32), ((8,), F32)
        made = check(body, expected, *specs, weights=2, products=2)
        assert [mode(c) for c in calls(made)] == modes


def test_a_bias_before_keys_that_are_permuted_stays_with_the_permutation() -> None:
    """The product reads the keys' heads in the stead of their transpose, and so they are made by a kernel."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        query, key = (emit(R.reshape(linear(emit, x, w, b), (3, 5, 2, 4))) for _ in range(2))
        return attention_scores(emit, query, key)

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        split = (x @ w + b).reshape(3, 5, 2, 4)
        return expected_scores(split, split)

    made = check(body, expected, ((3, 5, 8), F32), ((8, 8), F32), ((8,), F32), weights=2, products=3)
    assert [mode(c) for c in calls(made)] == ["", "", "right_transposed"]


def test_what_a_kernel_behind_a_product_computes_anyway_stays_there() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return R.nn.softmax(relu(emit, emit(R.add(emit(R.matmul(x, w)), b))))

    def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        found = np.exp(np.maximum(x @ w + b, 0))
        return found / found.sum(-1, keepdims=True)

    made = check(body, expected, ((4, 8), F32), ((8, 5), F32), ((5,), F32), weights=2)
    assert operators(made) == ["call_dps_packed", "add", "nn.relu", "nn.softmax"]


@pytest.mark.parametrize("reader", ["product", "result", "reshaped"])
def test_a_bias_is_computed_with_a_product_whose_result_is_written_anyway(reader: str) -> None:
    """A kernel that reads it as well has less to read and write then."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> list[Any]:
        y = emit(R.add(emit(R.matmul(x, w)), b))
        seen = emit(R.reshape(y, (2, 2, 8))) if reader == "reshaped" else y
        return [seen if reader == "result" else R.matmul(seen, w), R.nn.softmax(y)]

    mod = build(body, ((4, 8), F32), ((8, 8), F32), ((8,), F32))
    made, _ = rewritten(mod)
    assert [mode(c) for c in calls(made)] == (["bias"] if reader == "result" else ["bias", ""])
    assert "add" not in operators(made) and "nn.softmax" in operators(made)


def test_a_residual_is_not_where_a_kernel_reads_the_sum_as_well() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> list[Any]:
        y = emit(R.add(emit(R.add(emit(R.matmul(x, w)), b)), x))
        return [R.matmul(y, w), R.nn.softmax(y)]

    made, _ = rewritten(build(body, ((4, 8), F32), ((8, 8), F32), ((8,), F32)))
    assert [mode(c) for c in calls(made)] == ["", ""] and operators(made).count("add") == 2


def test_a_residual_is_computed_with_a_product_if_its_other_reader_runs_later() -> None:
    """The second sum waits for two more products, so its kernel could not compute the first one."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        y = emit(R.add(emit(R.matmul(x, w)), x))
        z = emit(R.matmul(emit(R.nn.relu(emit(R.matmul(y, w)))), w))
        return R.add(z, y)

    made, _ = rewritten(build(body, ((4, 8), F32), ((8, 8), F32)))
    assert [mode(c) for c in calls(made)] == ["residual", "relu", "residual"]


def test_a_later_reader_casts_what_it_scales() -> None:
    """The block of DaViT: a convolution reads the sum, and its scaled result is added to it in float32."""

    def body(emit: Any, x: Any, w: Any, b: Any, r: Any, k: Any, scale: Any) -> Any:
        y = emit(R.add(emit(R.add(emit(R.matmul(x, w)), b)), r))
        image = emit(R.reshape(y, (1, 2, 2, 8)))
        convolved = emit(R.nn.conv2d(image, k, data_layout="NHWC", kernel_layout="OHWI"))
        scaled = emit(R.multiply(emit(R.astype(convolved, "float32")), scale))
        return R.nn.softmax(emit(R.add(emit(R.astype(image, "float32")), scaled)))

    half = "float16"
    specs = ((4, 8), half), ((8, 8), half), ((8,), half), ((4, 8), half), ((8, 1, 1, 8), half), ((8,), F32)
    made, _ = rewritten(build(body, *specs))
    assert [mode(c) for c in calls(made)] == ["bias residual"]


@pytest.mark.parametrize("activation", [False, True])
def test_the_sum_of_two_products_is_computed_with_one_of_them(activation: bool) -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        first = emit(R.add(emit(R.matmul(x, w)), b))
        total = R.add(first, emit(R.add(emit(R.matmul(w, x)), b)))
        return R.nn.relu(emit(total)) if activation else total

    made, _ = rewritten(build(body, ((8, 8), F32), ((8, 8), F32), ((8,), F32)))
    with_sum = "bias residual relu" if activation else "bias residual"
    assert sorted(mode(c) for c in calls(made)) == ["bias", with_sum]
    arrays = [draw((8, 8)), draw((8, 8)) * 2, draw((8,))]
    x, w, b = (a.astype("float64") for a in arrays)
    wanted = x @ w + w @ x + 2 * b
    np.testing.assert_allclose(
        run(made, *arrays), np.maximum(wanted, 0) if activation else wanted, rtol=1e-4, atol=1e-4
    )


def test_a_convolution_reads_what_is_written() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any, k: Any) -> list[Any]:
        y = emit(R.reshape(emit(R.add(emit(R.matmul(x, w)), b)), (1, 2, 2, 8)))
        return [R.nn.conv2d(y, k, data_layout="NHWC", kernel_layout="OHWI"), R.exp(y)]

    specs = ((4, 8), F32), ((8, 8), F32), ((8,), F32), ((3, 1, 1, 8), F32)
    made, _ = rewritten(build(body, *specs))
    assert [mode(c) for c in calls(made)] == ["bias"]


NO_EPILOGUES: dict[str, tuple[Body, Body]] = {
    "a value with two readers": (
        lambda emit, y, b, c: R.multiply(emit(R.add(y, b)), y), lambda y, b, c: (y + b) * y,
    ),
    "a column": (lambda emit, y, b, c: R.add(y, c), lambda y, b, c: y + c),
    "itself": (lambda emit, y, b, c: R.add(y, y), lambda y, b, c: y + y),
    "more than the product": (
        lambda emit, y, b, c: R.add(emit(R.reshape(emit(R.max(y)), (1, 1))), c), lambda y, b, c: y.max() + c,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_EPILOGUES)
def test_what_is_no_epilogue(name: str) -> None:
    body, expected = NO_EPILOGUES[name]
    made = check(
        lambda emit, x, b, c, w: body(emit, emit(R.matmul(x, w)), b, c),
        lambda x, b, c, w: expected(x @ w, b, c),
        ((4, 8), F32), ((5,), F32), ((4, 1), F32), ((8, 5), F32), weights=1,
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_a_product_that_an_addition_repeats_is_no_epilogue() -> None:
    made = check(
        lambda emit, x, r, w: R.add(emit(R.matmul(x, w)), r), lambda x, r, w: x @ w + r,
        ((1, 8), F32), ((4, 5), F32), ((8, 5), F32), weights=1,
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_no_epilogue_of_a_depth_that_may_be_0() -> None:
    made = check(
        lambda emit, x, w, b: R.add(emit(R.matmul(x, w)), b), lambda x, w, b: x @ w + b,
        ((4, "n"), F32), (("n", 5), F32), ((5,), F32), sizes=(0, 1, 3),
    )  # fmt: skip
    assert mode(calls(made)[0]) == ""


def test_no_epilogues_where_they_are_switched_off() -> None:
    mod = build(lambda emit, x, b: R.add(emit(R.matmul(x, x)), b), ((4, 4), F32), ((4,), F32))
    assert mode(calls(rewritten(mod)[0])[0]) == "bias"
    off = StitchConfig(compute="libraries", epilogues=False)
    assert mode(calls(rewritten(mod, config=off)[0])[0]) == ""
