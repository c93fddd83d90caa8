# SPDX-License-Identifier: Apache-2.0
"""Values, shapes and graphs chosen to break a compiler: the stitched module computes what stock TVM computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm import tirx as tir
from tvm.relax import op as R

from tests.against_stock import (
    check_against_stock,
    drawn,
    module_for,
    module_of,
)

_SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    1e-40,
    -1e-42,
    0.0,
    -0.0,
    3.4e38,
    -3.4e38,
    88.8,
    -88.8,
    104.0,
    -104.0,
    1e30,
]


def _special() -> np.ndarray:
    x = drawn(4, 40)
    x.reshape(-1)[: 7 * len(_SPECIAL) : 7] = _SPECIAL
    return x


# -- values ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", "exp log tanh sigmoid erf sqrt rsqrt sin cos atan abs floor round".split())
def test_math_of_special_values(name: str) -> None:
    x = _special()
    if name in ("sin", "cos"):  # huge arguments are reduced with less care by every library
        x = np.where(np.abs(x) < 1e3, x, np.float32(np.nan)).astype("float32")
    check_against_stock(
        module_for(lambda bb, v: R.multiply(bb.emit(getattr(R, name)(v)), relax.const(1.0)), x), [x]
    )


def test_conditions_on_special_values() -> None:
    x = _special()

    def body(bb: Any, v: Any) -> list[Any]:
        twice = bb.emit(R.add(v, v))
        chosen = R.where(R.greater(twice, relax.const(0.0)), R.log(v), v)
        return [R.clip(twice, -1.0, 1.0), chosen, R.isnan(v), R.isinf(v), R.nn.relu(v)]

    with np.errstate(all="ignore"):
        expected = [
            np.clip(x + x, -1, 1), np.where(x + x > 0, np.log(x), x), np.isnan(x), np.isinf(x), np.maximum(x, 0),
        ]  # fmt: skip
    check_against_stock(module_for(body, x), [x], expected=expected)  # stock TVM's clip and relu lose NaN


@pytest.mark.parametrize("columns", [40, 1023, 3000])
def test_softmax_of_masked_rows(columns: int) -> None:
    x = drawn(4, columns)
    x[0, ::2], x[1], x[2, 3], x[3, 0] = -np.inf, -np.inf, np.nan, np.inf
    (out,) = check_against_stock(module_for(lambda bb, v: R.nn.softmax(bb.emit(R.add(v, v)), -1), x), [x])
    assert np.isfinite(out[0]).all() and np.isnan(out[1:]).all()


@pytest.mark.parametrize("columns", [1, 33, 300])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float64"])
def test_reductions_of_every_dtype(dtype: str, columns: int) -> None:
    x = drawn(3, columns, dtype=dtype)  # sums of small integers wrap around

    def body(bb: Any, v: Any) -> list[Any]:
        return [R.sum(bb.emit(R.add(v, v)), 1), R.max(v, 1), R.min(v, 1)]

    check_against_stock(module_for(body, x), [x])


def test_integers_divide_nothing_that_is_not_there() -> None:
    x, y = drawn(5, 37, dtype="int32"), drawn(5, 37, dtype="int32", high=7) + np.int32(2)

    def body(bb: Any, a: Any, b: Any) -> list[Any]:
        quotient = bb.emit(R.floor_divide(a, R.subtract(b, relax.const(1, "int32"))))
        return [R.sum(quotient, 1), quotient]

    check_against_stock(module_for(body, x, y), [x, y])


# -- shapes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("axes", [(0,), (2,), (4,), (0, 4), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4)])
def test_reductions_over_any_axes(axes: tuple[int, ...]) -> None:
    x = drawn(2, 3, 4, 1, 2)

    def body(bb: Any, v: Any) -> list[Any]:
        centred = R.subtract(v, R.mean(v, list(axes), True))
        return [R.exp(R.sum(R.multiply(v, v), list(axes))), R.max(v, list(axes), True), centred]

    check_against_stock(module_for(body, x), [x])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 40), (40, 1), (2,) * 7])
def test_ranks(shape: tuple[int, ...]) -> None:
    x = np.asarray(drawn(*shape), dtype="float32").reshape(shape)
    check_against_stock(
        module_for(lambda bb, v: [R.exp(R.add(v, v)), R.subtract(v, R.mean(v)), R.max(v, None, True)], x), [x]
    )


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, "float32")
    check_against_stock(
        module_for(lambda bb, v: [R.nn.softmax(R.exp(R.add(v, v)), -1), R.sum(v)], x), [x], cuda=False
    )


@pytest.mark.parametrize("n, m", [(0, 4), (4, 0), (1, 1), (17, 33)])
def test_symbolic_sizes_down_to_zero(n: int, m: int) -> None:
    rows, middle = tir.Var("n", "int64"), tir.Var("m", "int64")

    def body(bb: Any, v: Any, bias: Any) -> list[Any]:
        y = bb.emit(R.exp(R.add(v, bias)))
        return [R.nn.softmax(y, -1), R.sum(y, -1), R.permute_dims(y, [1, 0, 2])]

    mod = module_of(body, ((rows, middle, 16), "float32"), ((middle, 16), "float32"))
    check_against_stock(mod, [drawn(n, m, 16), drawn(m, 16)])


# -- data movement --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_take_out_of_bounds(mode: str) -> None:
    x, index = drawn(4, 6), np.array([0, -1, 7, 3], "int64")
    check_against_stock(
        module_for(lambda bb, v, i: R.exp(R.take(bb.emit(R.add(v, v)), i, 0, mode)), x, index), [x, index]
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_of_itself(axis: int) -> None:
    x = drawn(4, 6, 8)

    def body(bb: Any, v: Any) -> list[Any]:
        y = bb.emit(R.exp(v))
        joined = bb.emit(R.concat([y, v, y], axis))
        backwards = R.strided_slice(joined, [axis], [7], [0], [-2])
        return [R.nn.softmax(joined, axis), R.add(R.flip(y, axis), v), R.exp(backwards)]

    check_against_stock(module_for(body, x), [x])


def test_padding_is_not_read() -> None:
    x = drawn(4, 6, 8)
    check_against_stock(
        module_for(
            lambda bb, v: R.nn.softmax(R.nn.pad(bb.emit(R.log(v)), [0, 0, 1, 2, 2, 1], "constant", 3.0)), x
        ),
        [x],
    )


# -- graphs ---------------------------------------------------------------------------------------------------------
def test_outputs_shared_returned_and_unused() -> None:
    x = drawn(4, 5)

    def body(bb: Any, v: Any) -> list[Any]:
        y = bb.emit(R.exp(v))
        bb.emit(R.sum(y, 1))
        return [y, y, v, R.exp(R.add(y, y)), R.sum(y, 1)]

    check_against_stock(module_for(body, x), [x])


def test_values_used_twice_at_every_level() -> None:
    x = drawn(4, 5) * np.float32(0.1)

    def body(bb: Any, v: Any) -> Any:
        for _ in range(40):
            v = bb.emit(R.add(bb.emit(R.tanh(v)), v))
        return v

    check_against_stock(module_for(body, x), [x])


def test_shifts_added_at_every_level() -> None:
    """Every level reads the one before at two places: 2 ** 12 paths lead to an element."""
    x = drawn(4, 8)

    def body(bb: Any, v: Any) -> Any:
        for _ in range(12):
            head, tail = R.strided_slice(v, [1], [0], [1]), R.strided_slice(v, [1], [1], [8])
            v = bb.emit(R.add(v, bb.emit(R.concat([bb.emit(tail), bb.emit(head)], 1))))
        return v

    check_against_stock(module_for(body, x), [x], cuda=False)


def test_many_inputs_and_outputs() -> None:
    arrays = [drawn(3, 7, seed=i) for i in range(70)]

    def body(bb: Any, *values: Any) -> list[Any]:
        total = values[0]
        for v in values[1:]:
            total = bb.emit(R.add(total, v))
        return [bb.emit(R.add(total, relax.const(float(i)))) for i in range(30)]

    check_against_stock(module_for(body, *arrays), arrays)
