# SPDX-License-Identifier: Apache-2.0
"""Classes of operators, told by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, legalize, prim_funcs, single
from tvm_stitch.graph.classify import is_heavy
from tvm_stitch.graph.ir import OpClass
from tvm_stitch.graph.reader import read

F32 = "float32"
X = ((4, 6), F32)

CLASSES: dict[str, tuple[Callable[..., Any], OpClass]] = {
    "add": (lambda emit, x: R.add(x, x), OpClass.LIGHT),
    "maximum": (lambda emit, x: R.maximum(x, relax.const(0.0, F32)), OpClass.LIGHT),
    "negative": (lambda emit, x: R.negative(x), OpClass.LIGHT),
    "compare": (lambda emit, x: R.greater(x, x), OpClass.LIGHT),
    "where": (lambda emit, x: R.where(R.greater(x, relax.const(0.0, F32)), x, x), OpClass.LIGHT),
    "cast": (lambda emit, x: R.astype(x, "float16"), OpClass.LIGHT),
    "divide by a constant": (lambda emit, x: R.divide(x, relax.const(3.0, F32)), OpClass.LIGHT),
    "divide": (lambda emit, x: R.divide(x, x), OpClass.HEAVY),
    "exp": (lambda emit, x: R.exp(x), OpClass.HEAVY),
    "power": (lambda emit, x: R.power(x, relax.const(2.5, F32)), OpClass.HEAVY),
    "tanh": (lambda emit, x: R.tanh(x), OpClass.HEAVY),
    "erf": (lambda emit, x: R.erf(x), OpClass.HEAVY),
    "log": (lambda emit, x: R.log(x), OpClass.HEAVY),
    "sigmoid": (lambda emit, x: R.sigmoid(x), OpClass.HEAVY),
    "sqrt": (lambda emit, x: R.sqrt(x), OpClass.HEAVY),
    "rsqrt": (lambda emit, x: R.rsqrt(x), OpClass.HEAVY),
    "broadcast rows": (lambda emit, x: R.broadcast_to(x, (3, 4, 6)), OpClass.BROADCAST),
    "sum": (lambda emit, x: R.sum(x, 1), OpClass.REDUCE),
    "max over columns": (lambda emit, x: R.max(x, 0), OpClass.REDUCE),
    "transpose": (lambda emit, x: R.permute_dims(x), OpClass.MOVE),
    "reshape": (lambda emit, x: R.reshape(x, (3, 8)), OpClass.MOVE),
    "slice": (lambda emit, x: R.strided_slice(x, [1], [0], [3]), OpClass.MOVE),
    "concat": (lambda emit, x: R.concat([x, x], 1), OpClass.MOVE),
    "pad": (lambda emit, x: R.nn.pad(x, [0, 0, 1, 1]), OpClass.MOVE),
    "take": (lambda emit, x: R.take(x, relax.const([1, 0], "int64"), 0), OpClass.MOVE),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str) -> None:
    body, expected = CLASSES[name]
    functions = prim_funcs(legalize(build(lambda emit, x: emit(body(emit, x)), X)))
    found = [op for f in functions.values() for op in read(f).operators]
    assert found[-1].op_class is expected


def test_a_name_says_nothing() -> None:
    """A multiplication by its reciprocal named exp is light. An exponential named add is heavy."""
    from tvm.script import tirx as T

    @T.prim_func(private=True, s_tir=True)
    def func(
        a: T.Buffer((T.int64(8),), F32), b: T.Buffer((T.int64(8),), F32), c: T.Buffer((T.int64(8),), F32)
    ) -> None:
        for i in T.serial(T.int64(8)):
            with T.sblock("exp"):
                v = T.axis.spatial(T.int64(8), i)
                b[v] = a[v] * T.float32(2)
        for i in T.serial(T.int64(8)):
            with T.sblock("add"):
                v = T.axis.spatial(T.int64(8), i)
                c[v] = T.exp(a[v])

    assert [op.op_class for op in read(func).operators] == [OpClass.LIGHT, OpClass.HEAVY]


CONTRACTIONS: dict[str, tuple[Callable[..., Any], list[Any], bool]] = {
    "matmul": (lambda emit, x, y: R.matmul(x, y), [X, ((6, 5), F32)], True),
    "matrix times vector": (lambda emit, x, y: R.matmul(x, y), [X, ((6,), F32)], True),
    "batched": (lambda emit, x, y: R.matmul(x, y), [((2, 4, 6), F32), ((2, 6, 5), F32)], True),
    "half with float sums": (
        lambda emit, x, y: R.matmul(x, y, out_dtype=F32), [((4, 6), "float16"), ((6, 5), "float16")], True
    ),
    "conv": (lambda emit, x, y: R.nn.conv2d(x, y), [((1, 3, 8, 8), F32), ((4, 3, 3, 3), F32)], True),
    "sum": (lambda emit, x: R.sum(x, 1), [X], False),
    "sum of squares": (lambda emit, x: R.sum(R.multiply(x, x), 1), [X], False),
    "variance": (lambda emit, x: R.variance(x, 1), [X], False),
    "average pool": (lambda emit, x: R.nn.avg_pool2d(x, (2, 2)), [((1, 3, 8, 8), F32)], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name: str) -> None:
    body, specs, expected = CONTRACTIONS[name]
    functions = prim_funcs(legalize(build(lambda emit, *xs: emit(body(emit, *xs)), *specs)))
    assert any(op.contraction for f in functions.values() for op in read(f).operators) == expected


def test_one_element_is_broadcast() -> None:
    spread = single(lambda emit, x: R.broadcast_to(x, (3, 5)), ((1, 1), F32))
    assert spread.operators[0].op_class is OpClass.BROADCAST


def test_heavy_division_is_of_floats() -> None:
    whole = single(lambda emit, x: R.floor_divide(x, x), ((4, 6), "int32"))
    assert not is_heavy(whole.operators[0].value)
