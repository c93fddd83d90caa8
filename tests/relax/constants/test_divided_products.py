# SPDX-License-Identifier: Apache-2.0
"""Products whose channels are divided for convolutions become products of some channels each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build
from tests.relax.library.matmul_calls import run
from tvm_stitch.relax.constants.divided_products import DividedProducts
from tvm_stitch.relax.rewriting.contents import contents_of
from tvm_stitch.relax.rewriting.views import shape_of

F16, F32 = "float16", "float32"
Emit = Callable[..., Any]


def numbers(*shape: int, dtype: str = F16) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(F32).astype(dtype)


def depthwise(emit: Emit, x: Any) -> Any:
    channels = int(x.ty.shape.values[-1])
    attrs = {"data_layout": "NHWC", "kernel_layout": "OHWI", "groups": channels, "out_dtype": F16}
    return emit(R.nn.conv2d(x, relax.const(numbers(channels, 3, 3, 1)), padding=1, **attrs))


def gated(emit: Emit, x: Any, cuts: list[int], results: int = 48) -> list[Any]:
    """Build the block of MambaOut up to its split: rows, a bias, an image, parts of the channels."""
    rows = emit(R.matmul(emit(R.reshape(x, [60, 16])), relax.const(numbers(16, results)), out_dtype=F16))
    image = emit(R.reshape(emit(R.add(relax.const(numbers(1, results)), rows)), [2, 5, 6, results]))
    parts = emit(R.split(image, cuts, axis=3))
    return [emit(relax.TupleGetItem(parts, i)) for i in range(len(cuts) + 1)]


def mambaout(emit: Emit, x: Any) -> Any:
    gate, kept, convolved = gated(emit, x, [24, 32])
    joined = emit(R.concat([kept, depthwise(emit, convolved)], axis=3))
    return R.multiply(emit(R.concat([joined], axis=3)), emit(R.nn.gelu(gate)))


def focalnet(emit: Emit, x: Any) -> Any:
    """Build a convolution of one position, a bias in float32, and three gates."""
    weight = emit(R.permute_dims(relax.const(numbers(35, 16, 1, 1)), [0, 2, 3, 1]))
    attrs = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_dtype": F16}
    y = emit(R.astype(emit(R.nn.conv2d(x, weight, **attrs)), F32))
    y = emit(R.add(y, emit(R.permute_dims(relax.const(numbers(1, 35, 1, 1, dtype=F32)), [0, 2, 3, 1]))))
    parts = emit(R.split(y, [16, 32], axis=3))
    query, context, gates = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
    context = emit(R.astype(depthwise(emit, emit(R.astype(context, F16))), F32))
    gate = emit(R.strided_slice(gates, [3], [1], [2]))
    return R.multiply(query, emit(R.multiply(context, gate)))


def results(mod: tvm.IRModule) -> list[int]:
    """Return the channels of all products but depthwise convolutions."""
    contents = contents_of(mod["main"])
    calls = contents.get("relax.matmul", []) + [
        call for call in contents.get("relax.nn.conv2d", []) if int(call.attrs.groups) == 1
    ]
    return sorted(int((shape_of(call) or (0,))[-1]) for call in calls)


@pytest.mark.parametrize(("body", "expected"), [(mambaout, [16, 32]), (focalnet, [8, 16, 16])])
def test_the_convolved_part_is_a_product(body: Any, expected: list[int]) -> None:
    mod = build(body, ((2, 5, 6, 16), F16))
    made = DividedProducts(CHOICES)(mod)
    assert results(made) == expected
    assert "relax.split" not in contents_of(made["main"])
    x = numbers(2, 5, 6, 16)
    wanted, got = (run(each, x).astype("float64") for each in (mod, made))
    assert np.abs(wanted - got).max() < 4e-3 * np.abs(wanted).max()


def not_convolved(emit: Emit, x: Any) -> Any:
    gate, kept, rest = gated(emit, x, [24, 32])
    return R.multiply(emit(R.concat([kept, emit(R.exp(rest))], axis=3)), gate)


def read_whole(emit: Emit, x: Any) -> Any:
    rows = emit(R.matmul(emit(R.reshape(x, [60, 16])), relax.const(numbers(16, 48)), out_dtype=F16))
    parts = emit(R.split(emit(R.reshape(rows, [2, 5, 6, 48])), [24, 32], axis=3))
    convolved = depthwise(emit, emit(relax.TupleGetItem(parts, 2)))
    return R.concat([convolved, emit(R.reshape(rows, [2, 5, 6, 48]))], axis=3)


def of_rows(emit: Emit, x: Any) -> Any:
    """Divide the rows of the image, not its channels."""
    rows = emit(R.matmul(emit(R.reshape(x, [60, 16])), relax.const(numbers(16, 48)), out_dtype=F16))
    parts = emit(R.split(emit(R.reshape(rows, [2, 5, 6, 48])), [2], axis=1))
    return R.concat([depthwise(emit, emit(relax.TupleGetItem(parts, i))) for i in range(2)], axis=1)


def wide_data(emit: Emit, x: Any) -> Any:
    """Convolve one channel of many: the data would be read again for it."""
    rows = emit(R.matmul(emit(R.reshape(x, [15, 64])), relax.const(numbers(64, 48)), out_dtype=F16))
    parts = emit(R.split(emit(R.reshape(rows, [1, 5, 3, 48])), [40], axis=3))
    first, last = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
    return R.concat([first, depthwise(emit, last)], axis=3)


@pytest.mark.parametrize("body", [not_convolved, read_whole, of_rows, wide_data])
def test_other_splits_stay(body: Any) -> None:
    mod = build(body, ((2, 5, 6, 16), F16))
    tvm.ir.assert_structural_equal(DividedProducts(CHOICES)(mod), mod)
