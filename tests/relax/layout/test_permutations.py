# SPDX-License-Identifier: Apache-2.0
"""Element-wise operators run in the order that needs the fewest transpositions, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from tests.graph.helpers import build
from tests.relax.layout.permutation_runs import check, permutes, propagated, run, stays
from tvm_stitch.relax.layout.permutations import composed, inverse

SCALE = np.arange(4, dtype="float32").reshape(4, 1, 1)
"""Of fewer axes than what it scales."""


# -- before and after ------------------------------------------------------------------------------------------------
def test_a_residual_between_branches_with_channels_last() -> None:
    """As in ConvNeXt: every layer transposes its branch there and back, and scales and adds it channels-first."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor(("n", 3, 5, 4), "float32"), s: RS.Tensor((1, 4, 1, 1), "float32")) -> RS.Tensor(
            ("n", 3, 5, 4), "float32"
        ):
            n = T.int64()  # noqa: F841
            with RS.dataflow():
                norm = RS.nn.softmax(x)
                first = RS.permute_dims(norm, [0, 3, 1, 2])
                in1 = RS.permute_dims(first, [0, 2, 3, 1])
                out1 = RS.nn.softmax(in1)
                back1 = RS.permute_dims(out1, [0, -1, 1, 2])
                scaled1 = RS.multiply(back1, s)
                sum1 = RS.add(first, scaled1)
                in2 = RS.permute_dims(sum1, [0, 2, 3, 1])
                out2 = RS.nn.softmax(in2)
                back2 = RS.permute_dims(out2, [0, 3, 1, 2])
                scaled2 = RS.multiply(RS.const(SCALE), back2)
                half2 = RS.multiply(scaled2, RS.const(0.5, "float32"))
                sum2 = RS.add(sum1, half2)
                last = RS.permute_dims(sum2, [0, 2, 3, 1])
                result = RS.nn.softmax(last)
                RS.output(result)
            return result

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor(("n", 3, 5, 4), "float32"), s: RS.Tensor((1, 4, 1, 1), "float32")) -> RS.Tensor(
            ("n", 3, 5, 4), "float32"
        ):
            n = T.int64()  # noqa: F841
            with RS.dataflow():
                norm = RS.nn.softmax(x)
                out1 = RS.nn.softmax(norm)
                scale = RS.permute_dims(s, [0, 2, 3, 1])
                scaled1 = RS.multiply(out1, scale)
                sum1 = RS.add(norm, scaled1)
                out2 = RS.nn.softmax(sum1)
                scaled2 = RS.multiply(RS.const(SCALE.reshape(1, 1, 1, 4)), out2)
                half2 = RS.multiply(scaled2, RS.const(0.5, "float32"))
                sum2 = RS.add(sum1, half2)
                result = RS.nn.softmax(sum2)
                RS.output(result)
            return result

    check(Before, After)


def test_a_member_that_is_read_in_two_orders() -> None:
    """It is transposed once, for both of its readers in the other order."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((2, 3, 4), "float32"), y: RS.Tensor((2, 4, 3), "float32")):
            with RS.dataflow():
                a = RS.exp(RS.permute_dims(x, [0, 2, 1]))
                b = RS.add(a, RS.permute_dims(RS.nn.softmax(x), [0, 2, 1]))
                c = RS.matmul(RS.permute_dims(b, [0, 2, 1]), y)
                d = RS.nn.softmax(b)
                e = RS.sum(b, axis=1)
                RS.output(c, d, e)
            return (c, d, e)

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((2, 3, 4), "float32"), y: RS.Tensor((2, 4, 3), "float32")):
            with RS.dataflow():
                a = RS.exp(x)
                b = RS.add(a, RS.nn.softmax(x))
                back = RS.permute_dims(b, [0, 2, 1])
                c = RS.matmul(b, y)
                d = RS.nn.softmax(back)
                e = RS.sum(back, axis=1)
                RS.output(c, d, e)
            return (c, d, e)

    check(Before, After)


def test_results_keep_their_order() -> None:
    """One result is what is transposed, the others are the operators themselves and their transposition."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((3, 4, 5), "float32"), y: RS.Tensor((3, 4, 5), "float32")):
            with RS.dataflow():
                a = RS.permute_dims(x, [2, 0, 1])
                b = RS.permute_dims(y, [2, 0, 1])
                c = RS.permute_dims(RS.exp(y), [2, 0, 1])
                d = RS.add(RS.add(a, b), c)
                e = RS.permute_dims(d, [1, 2, 0])
                RS.output(d, e)
            return (d, e)

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((3, 4, 5), "float32"), y: RS.Tensor((3, 4, 5), "float32")):
            with RS.dataflow():
                e = RS.add(RS.add(x, y), RS.exp(y))
                d = RS.permute_dims(e, [2, 0, 1])
                RS.output(d, e)
            return (d, e)

    x, y = (np.random.default_rng(i).standard_normal((3, 4, 5)).astype("float32") for i in (1, 2))
    assert len(permutes(Before)) == 4 and len(permutes(propagated(Before))) == len(permutes(After)) == 1
    for found, expected in zip(run(propagated(Before), x, y), run(After, x, y), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_several_blocks() -> None:
    """A value that one block has transposed is not seen in another."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), s: RS.Tensor((1, 3), "float32")):
            with RS.dataflow():
                a = RS.exp(RS.multiply(RS.permute_dims(x), s))
                b = RS.permute_dims(a)
                RS.output(b)
            c = RS.nn.softmax(b)
            with RS.dataflow():
                d = RS.exp(RS.multiply(RS.permute_dims(c), s))
                e = RS.permute_dims(d)
                RS.output(e)
            f = RS.permute_dims(s)
            return (e, f)

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), s: RS.Tensor((1, 3), "float32")):
            with RS.dataflow():
                t = RS.permute_dims(s, [1, 0])
                b = RS.exp(RS.multiply(x, t))
                RS.output(b)
            c = RS.nn.softmax(b)
            with RS.dataflow():
                t = RS.permute_dims(s, [1, 0])
                e = RS.exp(RS.multiply(c, t))
                RS.output(e)
            f = RS.permute_dims(s)
            return (e, f)

    check(Before, After)


def test_a_transposition_that_another_block_reads_is_no_gain() -> None:
    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), y: RS.Tensor((4, 3), "float32")):
            with RS.dataflow():
                a = RS.add(RS.permute_dims(x), y)
                RS.output(a)
            c = RS.nn.softmax(a)
            with RS.dataflow():
                d = RS.matmul(RS.permute_dims(a), c)
                RS.output(d)
            return d

    stays(Before)


def test_transpositions_in_another_block_are_no_gain() -> None:
    """They stay there, whatever the order of what they read."""

    @I.ir_module
    class Module:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), y: RS.Tensor((4, 3), "float32")):
            with RS.dataflow():
                a = RS.add(RS.permute_dims(x), y)
                b = RS.exp(a)
                RS.output(a, b)
            c = RS.nn.softmax(a)
            with RS.dataflow():
                d = RS.matmul(RS.permute_dims(a), RS.multiply(c, RS.nn.softmax(c)))
                e = RS.matmul(RS.permute_dims(b), c)
                RS.output(d, e)
            return (d, e)

    stays(Module)


def test_transpositions_that_are_there_anyway_are_no_gain() -> None:
    """Products read the transpositions, too: they stay, and another would be one more."""

    def body(emit: Callable[..., Any], x: Any, y: Any, w: Any) -> list[Any]:
        a, b = emit(R.permute_dims(x)), emit(R.permute_dims(y))
        return [R.matmul(a, w), R.matmul(b, w), R.add(a, b)]

    stays(build(body, *([((3, 4), "float32")] * 3)))


def test_a_transposition_that_is_there_is_read() -> None:
    def body(emit: Callable[..., Any], x: Any, y: Any, w: Any) -> list[Any]:
        a = emit(R.permute_dims(emit(R.add(emit(R.permute_dims(y)), x))))
        return [R.nn.softmax(a), R.matmul(w, emit(R.permute_dims(x)))]

    mod = build(body, ((3, 4), "float32"), ((4, 3), "float32"), ((2, 4), "float32"))
    assert len(permutes(mod)) == 3 and len(permutes(propagated(mod))) == 1


NOTHING = {
    "one of two operands": lambda emit, x, y: [R.add(emit(R.permute_dims(x, [0, 2, 1])), y)],
    "what is a result as it is": lambda emit, x, y: [R.exp(emit(R.permute_dims(x, [0, 2, 1])))],
    "a small operand": lambda emit, x, y: [
        R.multiply(y, emit(R.permute_dims(emit(R.max(x, 2, True)), [0, 2, 1])))
    ],
    "other operators": lambda emit, x, y: [
        R.permute_dims(emit(R.nn.softmax(emit(R.permute_dims(x, [0, 2, 1])))), [0, 2, 1])
    ],
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_gain(name: str) -> None:
    stays(build(NOTHING[name], ((2, 3, 4), "float32"), ((2, 4, 3), "float32")))


def test_what_is_computed_in_a_products_kernel_stays_there() -> None:
    def body(emit: Callable[..., Any], x: Any, y: Any) -> list[Any]:
        product = emit(R.matmul(x, y))
        return [R.permute_dims(emit(R.nn.relu(emit(R.add(product, emit(R.permute_dims(x)))))))]

    stays(build(body, *([((4, 4), "float32")] * 2)))


def test_a_value_and_its_transposition_of_equal_extents() -> None:
    """No order suits both: one of them is transposed, as before."""

    def body(emit: Callable[..., Any], x: Any) -> list[Any]:
        return [R.nn.softmax(emit(R.add(x, emit(R.permute_dims(x)))))]

    stays(build(body, ((4, 4), "float32")))

    def more(emit: Callable[..., Any], x: Any) -> list[Any]:
        a = emit(R.exp(emit(R.permute_dims(x))))
        b = emit(R.subtract(a, emit(R.permute_dims(a))))
        return [R.permute_dims(emit(R.nn.relu(b)))]

    mod = build(more, ((4, 4), "float32"))
    assert len(permutes(mod)) == 3 and len(permutes(propagated(mod))) == 1
    x = np.random.default_rng(1).standard_normal((4, 4)).astype("float32")
    np.testing.assert_array_equal(run(propagated(mod), x)[0], run(mod, x)[0])


def test_extents_that_are_not_known() -> None:
    """Transpositions of tensors of which nothing but the rank is known stay. Others next to them go."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), y: RS.Tensor(ndim=3, dtype="float32")):
            with RS.dataflow():
                a = RS.permute_dims(RS.exp(RS.permute_dims(x)))
                b = RS.permute_dims(RS.exp(RS.permute_dims(y)))
                RS.output(a, b)
            return (a, b)

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((3, 4), "float32"), y: RS.Tensor(ndim=3, dtype="float32")):
            with RS.dataflow():
                a = RS.exp(x)
                b = RS.permute_dims(RS.exp(RS.permute_dims(y)))
                RS.output(a, b)
            return (a, b)

    check(Before, After)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8"])
def test_constants_of_every_type(dtype: str) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype)

    def body(emit: Callable[..., Any], x: Any) -> list[Any]:
        fits = emit(R.equal(emit(R.permute_dims(x)), relax.const(array, dtype)))
        return [R.permute_dims(fits)]

    mod = propagated(build(body, ((3, 4), dtype)))
    assert not permutes(mod)
    x = array.T.copy()
    x[1] = 0
    np.testing.assert_array_equal(run(mod, x)[0], x == array.T)


def test_conditions() -> None:
    array = np.arange(12).reshape(4, 3) % 2 == 0

    def body(emit: Callable[..., Any], x: Any) -> list[Any]:
        chosen = R.where(relax.const(array), emit(R.permute_dims(x)), relax.const(0.0))
        return [R.permute_dims(emit(chosen))]

    mod = propagated(build(body, ((3, 4), "float32")))
    assert not permutes(mod)
    x = np.random.default_rng(1).standard_normal((3, 4)).astype("float32")
    np.testing.assert_array_equal(run(mod, x)[0], np.where(array.T, x, 0))


def test_a_transposition_of_a_transposed_constant() -> None:
    weight = np.random.default_rng(0).random((1, 5, 1, 4)).astype("float32")

    def body(emit: Any, x: Any) -> list[Any]:
        moved = emit(R.permute_dims(x, [0, 2, 1, 3]))
        turned = emit(R.permute_dims(relax.const(weight), [0, 2, 1, 3]))
        named = emit(R.permute_dims(turned, [0, 1, 3, 2]))
        y = emit(R.permute_dims(emit(R.exp(moved)), [0, 2, 1, 3]))
        return [R.matmul(y, named)]

    mod = build(body, ((2, 3, 6, 4), "float32"))
    after = propagated(mod)
    assert len(permutes(after)) < len(permutes(mod))
    x = np.random.default_rng(1).random((2, 3, 6, 4)).astype("float32")
    for each in (mod, after):
        np.testing.assert_allclose(run(each, x)[0], np.exp(x) @ weight.transpose(0, 2, 3, 1), rtol=1e-5)


def test_transpositions_in_a_row_without_operators() -> None:
    """Two that undo each other are none, and others are one, also if nothing element-wise is next to them."""

    @I.ir_module
    class Before:
        @RS.function
        def main(x: RS.Tensor((2, 3, 4, 5), "float32"), w: RS.Tensor((5, 6), "float32")):
            with RS.dataflow():
                a = RS.permute_dims(x, axes=[0, 3, 1, 2])
                b = RS.permute_dims(a, axes=[0, 2, 3, 1])
                c = RS.matmul(b, w)
                d = RS.permute_dims(c, axes=[0, 3, 1, 2])
                e = RS.permute_dims(d, axes=[0, 2, 1, 3])
                f = RS.nn.softmax(e)
                RS.output(f)
            return f

    @I.ir_module
    class After:
        @RS.function
        def main(x: RS.Tensor((2, 3, 4, 5), "float32"), w: RS.Tensor((5, 6), "float32")):
            with RS.dataflow():
                c = RS.matmul(x, w)
                e = RS.permute_dims(c, axes=[0, 1, 3, 2])
                f = RS.nn.softmax(e)
                RS.output(f)
            return f

    check(Before, After)


def test_orders() -> None:
    rng = np.random.default_rng(0)
    array = rng.random((2, 3, 4, 5))
    for _ in range(20):
        first, then = (tuple(rng.permutation(4).tolist()) for _ in range(2))
        np.testing.assert_array_equal(
            array.transpose(first).transpose(then), array.transpose(composed(first, then))
        )
        assert composed(first, inverse(first)) == composed(inverse(first), first) == (0, 1, 2, 3)
