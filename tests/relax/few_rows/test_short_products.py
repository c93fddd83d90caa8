# SPDX-License-Identifier: Apache-2.0
"""Products of many vectors by a small matrix are element-wise operators, and so part of the kernels around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from stitch_testing.random.graphs import emulated_target
from tests.choices import CHOICES, change_choices
from tests.graph.helpers import LLVM, build, draw, emulated, on_llvm, symbol
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.few_rows.short_products import MATMUL, ShortProducts
from tvm_stitch.relax.rewriting.operators import has_operators, operator_name

FEW = replace(CHOICES, short_product_vectors=64)
HEADS, TOKENS, DEPTH = 4, 40, 32


@I.ir_module
class Before:
    @RS.function
    def main(x: RS.Tensor((64, 2), "float16"), w: RS.Tensor((2, 2), "float16")) -> RS.Tensor(
        (64, 2), "float16"
    ):
        with RS.dataflow():
            result = RS.matmul(x, w)
            RS.output(result)
        return result


@I.ir_module
class After:
    @T.prim_func(private=True, s_tir=True)
    def short_product(
        x: T.Buffer((T.int64(64), T.int64(2)), "float16"),
        w: T.Buffer((T.int64(2), T.int64(2)), "float16"),
        result: T.Buffer((T.int64(64), T.int64(2)), "float16"),
    ):
        T.func_attr({"tirx.noalias": True})
        for row, column in T.grid(T.int64(64), T.int64(2)):
            with T.sblock("short_product"):
                i, j = T.axis.remap("SS", [row, column])
                T.reads(x[i, T.int64(0) : T.int64(2)], w[T.int64(0) : T.int64(2), j])
                T.writes(result[i, j])
                result[i, j] = T.Cast(
                    "float16",
                    T.Cast("float32", x[i, T.int64(0)]) * T.Cast("float32", w[T.int64(0), j])
                    + T.Cast("float32", x[i, T.int64(1)]) * T.Cast("float32", w[T.int64(1), j]),
                )

    @RS.function
    def main(x: RS.Tensor((64, 2), "float16"), w: RS.Tensor((2, 2), "float16")) -> RS.Tensor(
        (64, 2), "float16"
    ):
        cls = After
        with RS.dataflow():
            result = RS.call_tir(cls.short_product, (x, w), out_ty=RS.Tensor((64, 2), dtype="float16"))
            RS.output(result)
        return result


def test_terms_are_added_up_in_float32() -> None:
    tvm.ir.assert_structural_equal(ShortProducts(FEW, True)(Before), After)


def multiplied(*shapes: Any, dtype: str = "float32") -> tvm.IRModule:
    return build(lambda emit, x, w: R.matmul(x, w), *((shape, dtype) for shape in shapes))


def is_rewritten(*shapes: Any, dtype: str = "float32") -> bool:
    return not has_operators(ShortProducts(FEW, True)(multiplied(*shapes, dtype=dtype)), {MATMUL})


SHAPES = [
    ((100, 3), (3, 5)),
    ((3, 5), (5, 100)),  # the matrix is the left operand
    ((2, 6, 30, 4), (4, 8)),
    ((2, 1, 40, 8), (3, 8, 8)),  # a matrix for each of three, broadcast over two
    ((6, 6), (2, 6, 40)),
    ((200, 3, 3), (200, 3, 3)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)])
def test_products_are_right(
    shapes: tuple[Any, Any], dtype: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_choices(monkeypatch, short_product_vectors=64)
    assert is_rewritten(*shapes)
    left, right = draw([(shape, dtype) for shape in shapes])
    (found,) = emulated(multiplied(*shapes, dtype=dtype), left, right)
    wanted = left.astype("float64") @ right.astype("float64")
    assert np.abs(found.astype("float64") - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("shapes", "dtype", "taken"),
    [
        (((100, 3), (3, 5)), "float32", True),
        (((2, 6, 30, 6), (6, 6)), "float32", True),
        (((100, 3), (3, 5)), "float16", False),
        (((3, 3), (3, 100)), "float32", False),
        (((100, 8), (8, 8)), "float32", False),
    ],
    ids=["a matrix", "heads", "a half type", "on the left", "too large"],
)
def test_products_on_a_cpu(shapes: tuple[Any, Any], dtype: str, taken: bool) -> None:
    mod = multiplied(*shapes, dtype=dtype)
    assert has_operators(ShortProducts(FEW, False)(mod), {MATMUL}) != taken


@pytest.mark.parametrize("heads", [(8, 16, 32, 6), (4096, 3)])
def test_products_on_a_cpu_are_right(heads: tuple[int, ...]) -> None:
    inner = heads[-1]

    def body(emit: Any, x: Any, w: Any) -> Any:
        return R.nn.softmax(emit(R.matmul(x, w)), 0)

    mod = build(body, (heads, "float32"), ((inner, inner), "float32"))
    assert count_kernels(mod, LLVM, pipeline(LLVM)).total == 1
    x, w = draw([(heads, "float32"), ((inner, inner), "float32")])
    (found,) = on_llvm(mod, x, w)
    wanted = np.exp(x.astype("float64") @ w.astype("float64"))
    wanted /= wanted.sum(0, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_symbolic_extents_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, short_product_vectors=64)
    n = symbol()
    mod = multiplied((n, 80, 4), (4, 4), dtype="float16")
    assert not has_operators(ShortProducts(FEW, True)(mod), {MATMUL})
    left, right = draw([((3, 80, 4), "float16"), ((4, 4), "float16")])
    (found,) = emulated(mod, left, right)
    wanted = left.astype("float64") @ right.astype("float64")
    assert np.abs(found.astype("float64") - wanted).max() <= 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((100, 4), (4, 4)), "int32"),
        (((63, 4), (4, 4)), "float32"),
        (((symbol(), 63, 4), (4, 4)), "float32"),
        (((100, 9), (9, 4)), "float32"),
        (((100, 4), (4, 9)), "float32"),
        (((100, 4), (4,)), "float32"),
        (((100, 16), (16, 100)), "float32"),
    ],
    ids=["integers", "few vectors", "perhaps few vectors", "many terms", "many columns", "a vector", "large"],
)
def test_others_stay(shapes: tuple[Any, Any], dtype: str) -> None:
    assert not is_rewritten(*shapes, dtype=dtype)


def mixed_heads() -> tvm.IRModule:
    """Return attention that mixes its heads before and behind the softmax, as CaiT does (arXiv:2103.17239)."""

    def body(emit: Any, q: Any, k: Any, v: Any, before: Any, bias: Any, behind: Any) -> Any:
        def mixed(scores: Any, by: Any) -> Any:
            last = emit(R.permute_dims(scores, [0, 2, 3, 1]))
            product = emit(R.add(emit(R.matmul(last, emit(R.permute_dims(by, [1, 0])))), bias))
            return emit(R.permute_dims(product, [0, 3, 1, 2]))

        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        shares = emit(R.nn.softmax(mixed(scores, before), -1))
        return R.matmul(mixed(shares, behind), v)

    heads = (1, HEADS, TOKENS, DEPTH), "float16"
    matrix = (HEADS, HEADS), "float16"
    return build(body, heads, heads, heads, matrix, ((HEADS,), "float16"), matrix)


def test_mixed_heads_are_part_of_the_kernels_around_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    target = emulated_target()
    assert count_kernels(mixed_heads(), target, pipeline(target)).total == 8
    change_choices(monkeypatch, short_product_vectors=64)
    assert count_kernels(mixed_heads(), target, pipeline(target)).total == 5


def test_mixed_heads_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, short_product_vectors=64)
    mod = mixed_heads()
    specs = [([int(extent) for extent in param.ty.shape], "float16") for param in mod["main"].params]
    given = draw(specs, low=-0.5, high=0.5)
    q, k, v, before, bias, behind = (each.astype("float64") for each in given)

    def mixed(scores: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (scores.transpose(0, 2, 3, 1) @ by.T + bias).transpose(0, 3, 1, 2)

    shares = np.exp(mixed(q @ k.swapaxes(-1, -2), before))
    wanted = mixed(shares / shares.sum(-1, keepdims=True), behind) @ v
    (found,) = emulated(mod, *given)
    assert np.abs(found.astype("float64") - wanted).max() <= 4e-3 * np.abs(wanted).max()


def transposed(matrix: Any, cast: bool) -> tvm.IRModule:
    """Return a product along the second of four axes, as importers write a linear layer there."""

    def body(emit: Any, x: Any) -> Any:
        y = emit(R.permute_dims(x, [0, 2, 3, 1]))
        y = emit(R.astype(y, "float16")) if cast else y
        y = emit(R.reshape(y, [2 * 12, 20, 3]))
        return R.reshape(emit(R.matmul(y, relax.const(matrix))), [2, 12, 20, matrix.shape[-1]])

    return build(body, ((2, 3, 12, 20), "float32"))


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_products_are_computed_before_transpositions(
    repeated: bool, cast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant that repeats one matrix for a batch is that matrix."""
    dtype = "float16" if cast else "float32"
    matrix = np.random.default_rng(0).standard_normal((3, 5)).astype(dtype)
    mod = transposed(np.tile(matrix, (24, 1, 1)) if repeated else matrix, cast)
    names = [
        operator_name(b.value)
        for block in ShortProducts(FEW, True)(mod)["main"].body.blocks
        for b in block.bindings
    ]
    assert names.index("relax.call_tir") < names.index("relax.permute_dims", names.index("relax.call_tir"))
    (x,) = draw([((2, 3, 12, 20), "float32")])
    change_choices(monkeypatch, short_product_vectors=64)
    (found,) = emulated(mod, x)
    wanted = x.transpose(0, 2, 3, 1).astype("float64") @ matrix.astype("float64")
    assert np.abs(found.astype("float64") - wanted).max() <= (2e-3 if cast else 1e-6) * np.abs(wanted).max()


def test_different_matrices_of_a_batch_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, short_product_vectors=64)
    matrices = np.random.default_rng(0).standard_normal((24, 3, 5)).astype("float32")
    (x,) = draw([((2, 3, 12, 20), "float32")])
    (found,) = emulated(transposed(matrices, False), x)
    wanted = (x.transpose(0, 2, 3, 1).reshape(24, 20, 3).astype("float64") @ matrices).reshape(2, 12, 20, 5)
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_one_matrix_of_a_batch_by_vectors_that_are_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    change_choices(monkeypatch, short_product_vectors=64)
    matrix = np.random.default_rng(0).standard_normal((3, 5)).astype("float32")
    (x,) = draw([((1, 40, 3), "float32")])
    mod = build(lambda emit, x: R.matmul(x, relax.const(np.tile(matrix, (4, 1, 1)))), (x.shape, "float32"))
    assert not has_operators(ShortProducts(FEW, True)(mod), {MATMUL})
    (found,) = emulated(mod, x)
    wanted = np.tile(x.astype("float64") @ matrix, (4, 1, 1))
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()
