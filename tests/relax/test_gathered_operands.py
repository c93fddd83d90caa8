# SPDX-License-Identifier: Apache-2.0
"""Products of gathered matrices, as of chosen experts, read them where they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from tests.graph.helpers import build
from tests.relax.stitch.test_compute_templates import TARGETS, draw, run, target
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import StitchOps, pipeline

RNG = np.random.default_rng(11)
F32 = "float32"


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def take(
        w: T.Buffer((T.int64(8), T.int64(40), T.int64(24)), "float32"),
        i: T.Buffer((T.int64(2),), "int64"),
        g: T.Buffer((T.int64(2), T.int64(40), T.int64(24)), "float32"),
    ):
        T.func_attr({"op_pattern": 2})
        for b, n, k in T.grid(T.int64(2), T.int64(40), T.int64(24)):
            with T.sblock("take"):
                vb, vn, vk = T.axis.remap("SSS", [b, n, k])
                g[vb, vn, vk] = w[i[vb], vn, vk]

    @T.prim_func(private=True, s_tir=True)
    def product(
        g: T.Buffer((T.int64(2), T.int64(40), T.int64(24)), "float32"),
        x: T.Buffer((T.int64(2), T.int64(24), T.int64(1)), "float32"),
        y: T.Buffer((T.int64(2), T.int64(40), T.int64(1)), "float32"),
    ):
        T.func_attr({"op_pattern": 4})
        for b, n, c, k in T.grid(T.int64(2), T.int64(40), T.int64(1), T.int64(24)):
            with T.sblock("product"):
                vb, vn, vc, vk = T.axis.remap("SSSR", [b, n, c, k])
                with T.init():
                    y[vb, vn, vc] = T.float32(0)
                y[vb, vn, vc] = y[vb, vn, vc] + g[vb, vn, vk] * x[vb, vk, vc]

    @RS.function
    def main(
        w: RS.Tensor((8, 40, 24), "float32"), i: RS.Tensor((2,), "int64"), x: RS.Tensor((2, 24, 1), "float32")
    ) -> RS.Tensor((2, 40, 1), "float32"):
        cls = Before
        with RS.dataflow():
            g = RS.call_tir(cls.take, (w, i), out_ty=RS.Tensor((2, 40, 24), "float32"))
            y = RS.call_tir(cls.product, (g, x), out_ty=RS.Tensor((2, 40, 1), "float32"))
            RS.output(y)
        return y


@I.ir_module
class After:
    @T.prim_func(private=True, s_tir=True)
    def fused_take_product(
        w: T.Buffer((T.int64(8), T.int64(40), T.int64(24)), "float32"),
        i: T.Buffer((T.int64(2),), "int64"),
        x: T.Buffer((T.int64(2), T.int64(24), T.int64(1)), "float32"),
        y: T.Buffer((T.int64(2), T.int64(40), T.int64(1)), "float32"),
    ):
        g = T.sblock_alloc_buffer((T.int64(2), T.int64(40), T.int64(24)))
        for b, n, k in T.grid(T.int64(2), T.int64(40), T.int64(24)):
            with T.sblock("take"):
                vb, vn, vk = T.axis.remap("SSS", [b, n, k])
                g[vb, vn, vk] = w[i[vb], vn, vk]
        for b, n, c, k in T.grid(T.int64(2), T.int64(40), T.int64(1), T.int64(24)):
            with T.sblock("product"):
                vb, vn, vc, vk = T.axis.remap("SSSR", [b, n, c, k])
                with T.init():
                    y[vb, vn, vc] = T.float32(0)
                y[vb, vn, vc] = y[vb, vn, vc] + g[vb, vn, vk] * x[vb, vk, vc]


def test_a_gather_joins_the_product_that_alone_reads_it() -> None:
    with target("avx2"):
        found = relax.transform.FuseTIR()(StitchOps()(Before))
    found = relax.transform.DeadCodeElimination()(found)
    (name,) = [g.name_hint for g in found.get_global_vars() if g.name_hint != "main"]
    tvm.ir.assert_structural_equal(found[name].body, After["fused_take_product"].body, map_free_vars=True)


def column(emit: Any, w: Any, i: Any, x: Any) -> Any:
    """Multiply as ``transformers`` does: the gathered matrix is the left side."""
    return R.matmul(emit(R.take(w, i, axis=0, mode="fast")), x)


def row(emit: Any, w: Any, i: Any, x: Any) -> Any:
    return R.matmul(x, emit(R.take(w, i, axis=0, mode="fast")))


def transposed_row(emit: Any, w: Any, i: Any, x: Any) -> Any:
    taken = emit(R.take(w, i, axis=0, mode="fast"))
    return R.matmul(x, emit(R.permute_dims(taken, [0, 2, 1])))


def by_coordinates(emit: Any, w: Any, i: Any, x: Any) -> Any:
    """Gather like ONNX's GatherND."""
    at = emit(R.expand_dims(i, [1]))
    return R.matmul(emit(R.gather_nd(w, at)), x)


CASES = [
    (column, (8, 70, 33), 3, (3, 33, 1)),
    (column, (8, 64, 256), 1, (1, 256, 1)),
    (column, (3, 5, 3), 7, (7, 3, 1)),
    (row, (8, 33, 70), 3, (3, 1, 33)),
    (row, (8, 256, 64), 1, (1, 1, 256)),
    (row, (8, 40, 30), 4, (4, 9, 40)),
    (transposed_row, (8, 70, 33), 3, (3, 1, 33)),
    (transposed_row, (8, 70, 33), 3, (3, 50, 33)),
    (by_coordinates, (8, 70, 33), 3, (3, 33, 1)),
]


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("body", "weights", "count", "given"), CASES)
def test_results_without_a_copy(
    body: Any, weights: tuple[int, ...], count: int, given: tuple[int, ...], cpu: str
) -> None:
    mod = build(body, (weights, F32), ((count,), "int64"), (given, F32))
    w, x, i = draw(*weights), draw(*given), RNG.integers(0, weights[0], count)
    result, computed = run(mod, target(cpu), w, i, x)
    taken = w[i].astype("float64")
    if body is transposed_row:
        taken = taken.swapaxes(1, 2)
    exact = taken @ x if body in (column, by_coordinates) else x @ taken
    size = np.abs(taken).sum() / taken.size * given[1 if body in (column, by_coordinates) else 2]
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=2e-6 * size)
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]
    kernels = count_kernels(mod, target(cpu), pipeline(target(cpu))).total
    assert kernels == 1


def test_numbers_of_int32_and_constant_weights() -> None:
    w = draw(8, 30, 20)

    def body(emit: Any, i: Any, x: Any) -> Any:
        return R.matmul(
            x, emit(R.permute_dims(emit(R.take(relax.const(w), i, axis=0, mode="fast")), [0, 2, 1]))
        )

    i, x = np.array([5], "int32"), draw(1, 1, 20)
    mod = build(body, ((1,), "int32"), ((1, 1, 20), F32))
    result, computed = run(mod, target("avx2"), i, x)
    np.testing.assert_allclose(result, x @ w[i].astype("float64").swapaxes(1, 2), rtol=1e-5, atol=1e-5)
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]
    assert count_kernels(mod, target("avx2"), pipeline(target("avx2"))).total == 1


def test_a_gather_that_others_read_is_a_kernel() -> None:
    def body(emit: Any, w: Any, i: Any, x: Any) -> list[Any]:
        taken = emit(R.take(w, i, axis=0, mode="fast"))
        return [R.matmul(taken, x), R.exp(taken)]

    mod = build(body, ((8, 40, 24), F32), ((2,), "int64"), ((2, 24, 1), F32))
    assert count_kernels(mod, target("avx2"), pipeline(target("avx2"))).total >= 2
