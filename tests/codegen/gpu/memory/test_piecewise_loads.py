# SPDX-License-Identifier: Apache-2.0
"""Concatenations and pads are loaded by vectors where a vector lies in one piece, and element by element elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.graph.helpers import Spec, build, check_emulated, cuda_source, draw

Emit = Callable[[Any], Any]
MANY = (35, 31, 9)
"""Positions of which all blocks have vectors of eight channels."""


def joined(shapes: list[tuple[int, ...]], axis: int, dtype: str) -> tuple[tvm.IRModule, list[Spec]]:
    """Build a concatenation that is scaled by channel, and passes ReLU."""

    def body(emit: Emit, *xs: Any) -> Any:
        *pieces, scale = xs
        y = emit(R.astype(emit(R.concat(list(pieces), axis)), "float32"))
        return R.astype(emit(R.nn.relu(emit(R.multiply(y, scale)))), dtype)

    channels = sum(s[-1] for s in shapes) if axis == len(shapes[0]) - 1 else shapes[0][-1]
    specs: list[Spec] = [*((shape, dtype) for shape in shapes), ((channels,), "float32")]
    return build(body, *specs), specs


def normed(shapes: list[tuple[int, ...]], dtype: str) -> tuple[tvm.IRModule, list[Spec]]:
    """Build a softmax of rows that two tensors make together."""

    def body(emit: Emit, *xs: Any) -> Any:
        y = emit(R.astype(emit(R.concat(list(xs), 1)), "float32"))
        y = emit(R.exp(emit(R.subtract(y, emit(R.max(y, 1, keepdims=True))))))
        return R.divide(y, emit(R.sum(y, 1, keepdims=True)))

    specs: list[Spec] = [(shape, dtype) for shape in shapes]
    return build(body, *specs), specs


def padded(shape: tuple[int, ...], dtype: str) -> tuple[tvm.IRModule, list[Spec]]:
    """Build an image with channels last and a border."""

    def body(emit: Emit, x: Any) -> Any:
        wide = emit(R.nn.pad(x, [0, 0, 1, 2, 2, 1, 0, 0], pad_value=0.5))
        return R.nn.relu(wide)

    return build(body, (shape, dtype)), [(shape, dtype)]


def widest_load(source: str, name: str) -> int:
    """Return the bytes of the widest load of a parameter."""
    types = {"uint4": 16, "float4": 16, "uint2": 8, "float2": 8, "half4": 8, "nv_bfloat164": 8}
    types |= {"uint1": 4, "half2": 4, "nv_bfloat162": 4}
    return max([size for word, size in types.items() if f"*({word}*)({name}_ptr" in source], default=0)


@pytest.mark.parametrize(
    ("shapes", "axis", "bytes_at_once"),
    [
        ([(*MANY, 24), (*MANY, 8), (*MANY, 16)], 3, 16),
        ([(*MANY, 12), (*MANY, 8), (*MANY, 4)], 3, 8),
        ([(*MANY, 18), (*MANY, 14)], 3, 4),
        ([(*MANY, 17), (*MANY, 15)], 3, 0),  # pieces begin anywhere
        ([(67, 401, 8), (67, 7, 8), (67, 131, 8)], 1, 16),
        ([(17011, 16), (1, 16)], 0, 16),
    ],
    ids=str,
)
def test_concatenations(shapes: list[tuple[int, ...]], axis: int, bytes_at_once: int) -> None:
    mod, specs = joined(shapes, axis, "float16")
    source = cuda_source(mod)
    assert {widest_load(source, f"x{i}") for i in range(len(shapes))} == {bytes_at_once}
    check_emulated(mod, draw(specs))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("columns", [(512, 256), (24, 8), (640, 1408), (13, 51)])
def test_rows_of_two_tensors(columns: tuple[int, int], dtype: str) -> None:
    mod, specs = normed([(37, each) for each in columns], dtype)
    check_emulated(mod, draw(specs))


@pytest.mark.parametrize(("channels", "bytes_at_once"), [(32, 16), (44, 8), (33, 0)])
def test_a_border_is_chosen_once_for_a_vector(channels: int, bytes_at_once: int) -> None:
    mod, specs = padded((11, 29, 37, channels), "float16")
    assert widest_load(cuda_source(mod), "x0") == bytes_at_once
    check_emulated(mod, draw(specs))


@pytest.mark.parametrize("count", [2, 9, 24])
def test_many_pieces(count: int) -> None:
    positions = 300_000 // (16 * count) + 1
    mod, specs = joined([(positions, 16 + 8 * (i == 0)) for i in range(count)], 1, "float16")
    assert widest_load(cuda_source(mod), f"x{count - 1}") == 16
    check_emulated(mod, draw(specs))
