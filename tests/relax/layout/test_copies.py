# SPDX-License-Identifier: Apache-2.0
"""Operators that give their operand, and broadcasts that a product does anyway, are dropped. Others stay."""

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
from tests.relax.stitch.test_compute_templates import check, draw, run, target
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.layout.copies import DropCopies
from tvm_stitch.relax.rewriting.contents import contents_of


@I.ir_module
class Before:
    @RS.function
    def main(
        x: RS.Tensor((2, "n", 8), "float32"),
        w: RS.Tensor((8, 5), "float32"),
        v: RS.Tensor((1, 8, 5), "float32"),
    ) -> RS.Tuple(
        RS.Tensor((2, "n", 5), "float32"),
        RS.Tensor((2, "n", 5), "float32"),
        RS.Tensor((3, 2, 8, 5), "float32"),
    ):
        n = T.int64()
        with RS.dataflow():
            same = RS.broadcast_to(x, (2, n, 8))
            copies = RS.broadcast_to(w, (2, 8, 5))
            a = RS.matmul(same, copies)
            more = RS.broadcast_to(v, (2, 8, 5))
            b = RS.matmul(x, more)
            several = RS.broadcast_to(w, (3, 2, 8, 5))
            result = (a, b, several)
            RS.output(result)
        return result


@I.ir_module
class After:
    @RS.function
    def main(
        x: RS.Tensor((2, "n", 8), "float32"),
        w: RS.Tensor((8, 5), "float32"),
        v: RS.Tensor((1, 8, 5), "float32"),
    ) -> RS.Tuple(
        RS.Tensor((2, "n", 5), "float32"),
        RS.Tensor((2, "n", 5), "float32"),
        RS.Tensor((3, 2, 8, 5), "float32"),
    ):
        with RS.dataflow():
            a = RS.matmul(x, w)
            b = RS.matmul(x, v)
            several = RS.broadcast_to(w, (3, 2, 8, 5))
            result = (a, b, several)
            RS.output(result)
        return result


def test_before_and_after() -> None:
    cleaned = tvm.transform.Sequential([DropCopies(), relax.transform.CanonicalizeBindings(),
                                        relax.transform.DeadCodeElimination()])  # fmt: skip
    tvm.ir.assert_structural_equal(cleaned(Before), cleaned(After))


def test_batches_that_only_the_broadcast_makes_stay() -> None:
    def body(emit: object, x: object, w: object) -> list[object]:
        return [R.matmul(x, emit(R.broadcast_to(w, (2, 8, 5))))]  # type: ignore[operator]

    mod = build(body, ((4, 8), "float32"), ((8, 5), "float32"))
    x, w = draw(4, 8), draw(8, 5)
    result, _ = run(mod, target("avx2"), x, w)
    check(result, x, np.broadcast_to(w, (2, 8, 5)))


def test_a_weight_that_is_copied_for_each_batch_is_packed() -> None:
    w = draw(8, 5)

    def body(emit: object, x: object) -> list[object]:
        return [R.matmul(x, emit(R.broadcast_to(relax.const(w), (2, 8, 5))))]  # type: ignore[operator]

    x = draw(2, 3, 8)
    result, computed = run(build(body, (x.shape, "float32")), target("avx2"), x)
    check(result, x, w)
    assert "weight packed" in "".join(computed.values())


def test_a_broadcast_depth_stays() -> None:
    def body(emit: object, x: object, w: object) -> list[object]:
        return [R.matmul(emit(R.broadcast_to(x, (4, 8))), w)]  # type: ignore[operator]

    mod = build(body, ((4, 1), "float32"), ((8, 5), "float32"))
    tvm.ir.assert_structural_equal(DropCopies()(mod), mod)


def test_broadcast_rows_of_a_matrix_stay() -> None:
    """A product takes one row for all of them no other way."""

    def body(emit: object, x: object, w: object) -> list[object]:
        return [R.matmul(emit(R.broadcast_to(x, (4, 8))), w)]  # type: ignore[operator]

    x, w = draw(1, 8), draw(8, 5)
    result, _ = run(build(body, (x.shape, "float32"), (w.shape, "float32")), target("avx2"), x, w)
    check(result, np.broadcast_to(x, (4, 8)), w)


@pytest.mark.parametrize("shapes", [((16, 40), (3, 40, 8)), ((1, 16, 40), (3, 40, 8))])
def test_a_left_side_that_is_copied_for_each_batch(shapes: tuple[tuple[int, ...], ...]) -> None:
    def body(emit: object, x: object, w: object) -> list[object]:
        return [R.matmul(emit(R.broadcast_to(x, (3, 16, 40))), w)]  # type: ignore[operator]

    x, w = draw(*shapes[0]), draw(*shapes[1])
    mod = build(body, (x.shape, "float32"), (w.shape, "float32"))
    result, computed = run(mod, target("avx2"), x, w)
    check(result, np.broadcast_to(x, (3, 16, 40)), w)
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]
    assert count_kernels(mod, target("avx2"), pipeline(target("avx2"))).total == 1


@pytest.mark.parametrize("shape", [(4, 40, 8), (1, 4, 40, 8), (2, 1, 40, 8)])
def test_some_batches_that_others_share_stay_copies(shape: tuple[int, ...]) -> None:
    """No template reads them so. The product keeps the template that it has."""

    def body(emit: object, x: object, w: object) -> list[object]:
        return [R.matmul(x, emit(R.broadcast_to(w, (2, 4, 40, 8))))]  # type: ignore[operator]

    x, w = draw(2, 4, 16, 40), draw(*shape)
    mod = build(body, (x.shape, "float32"), (w.shape, "float32"))
    result, computed = run(mod, target("avx2"), x, w)
    check(result, x, np.broadcast_to(w, (2, 4, 40, 8)))
    assert [how.split(":")[0] for how in computed.values()] == ["our template"]


def test_copies_are_dropped_but_for_results() -> None:
    def body(emit: object, x: object) -> list[object]:
        y = emit(R.astype(emit(R.permute_dims(emit(R.exp(x)), [0, 1])), "float32"))  # type: ignore[operator]
        y = emit(R.reshape(emit(R.broadcast_to(y, (4, 8))), (4, 8)))  # type: ignore[operator]
        return [R.nn.relu(y), R.astype(x, "float32"), R.permute_dims(x)]

    mod = tvm.transform.Sequential([DropCopies(), relax.transform.DeadCodeElimination()])(
        build(body, ((4, 8), "float32"))
    )
    names = [
        b.value.op.name for block in mod["main"].body.blocks for b in block.bindings if hasattr(b.value, "op")
    ]
    assert sorted(names) == ["relax.astype", "relax.exp", "relax.nn.relu", "relax.permute_dims"]


def test_a_weight_is_one_matrix_though_its_batches_are_joined_and_cast() -> None:
    """PyTorch multiplies an image of rows by a weight for each row of the image, as in the outlook of VOLO."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        weights = emit(R.reshape(emit(R.broadcast_to(w, [2, 3, 8, 5])), [6, 8, 5]))
        return R.matmul(x, emit(R.astype(weights, "float16")), out_dtype="float16")

    made = DropCopies()(build(body, ((6, 4, 8), "float16"), ((8, 5), "float32")))
    (call,) = contents_of(made["main"])["relax.matmul"]
    assert [len(arg.ty.shape) for arg in call.args] == [3, 2]
    assert str(call.args[1].ty.dtype) == "float16"


def test_a_matrix_for_each_batch_stays() -> None:
    def body(emit: Any, x: Any, w: Any) -> Any:
        weights = emit(R.reshape(emit(R.broadcast_to(w, [2, 3, 8, 5])), [6, 8, 5]))
        return R.matmul(x, weights)

    mod = build(body, ((6, 4, 8), "float32"), ((3, 8, 5), "float32"))
    tvm.ir.assert_structural_equal(DropCopies()(mod), mod)
