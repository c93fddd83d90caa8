# SPDX-License-Identifier: Apache-2.0
"""Values that are computed from one of several inputs load these by vectors, if a vector needs one of them only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm.relax import op as R

from tests.codegen.gpu.memory.test_piecewise_loads import widest_load
from tests.graph.helpers import Spec, build, check_emulated, cuda_source, draw

Emit = Callable[[Any], Any]
MANY = (35, 31, 9)
"""Positions of which all blocks have vectors of eight channels."""


def dual_path(
    width: int, more: int, dtype: str, places: tuple[int, ...] = MANY
) -> tuple[tvm.IRModule, list[Spec]]:
    """Build a block of a dual path network.

    Channels of a convolution are added to one path, and appended to the other.
    """

    def body(emit: Emit, x: Any, residual: Any, dense: Any, scale: Any) -> Any:
        axis = len(places)
        here = emit(R.strided_slice(x, [axis], [0], [width]))
        there = emit(R.strided_slice(x, [axis], [width], [width + more]))
        y = emit(R.concat([emit(R.add(residual, here)), dense, there], axis))
        return R.nn.relu(emit(R.multiply(y, scale)))

    widths = [width + more, width, 2 * more, width + 3 * more]
    specs: list[Spec] = [((*places, each), dtype) for each in widths[:3]]
    specs.append(((widths[3],), dtype))
    return build(body, *specs), specs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("width", "more", "bytes_at_once"), [(16, 8, 16), (24, 16, 16), (12, 4, 8), (7, 5, 0)]
)
def test_sums_and_inputs_side_by_side(width: int, more: int, bytes_at_once: int, dtype: str) -> None:
    mod, specs = dual_path(width, more, dtype)
    if dtype == "float32":
        bytes_at_once = min(16, 2 * bytes_at_once)
    if bytes_at_once:
        assert widest_load(cuda_source(mod), "x0") == bytes_at_once
    check_emulated(mod, draw(specs))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_border_of_a_computed_image(dtype: str) -> None:
    def body(emit: Emit, x: Any, y: Any) -> Any:
        inner = emit(R.nn.relu(emit(R.add(x, y))))
        return R.nn.relu6(emit(R.nn.pad(inner, [0, 0, 1, 2, 2, 1, 0, 0], pad_value=0.5)))

    specs: list[Spec] = [((31, 29, 37, 32), dtype)] * 2
    mod = build(body, *specs)
    assert widest_load(cuda_source(mod), "x1") == 16
    check_emulated(mod, draw(specs))


def test_concatenations_of_concatenations() -> None:
    def body(emit: Emit, a: Any, b: Any, c: Any, d: Any) -> Any:
        inner = emit(R.concat([emit(R.add(a, a)), emit(R.multiply(b, b))], 1))
        outer = emit(R.concat([inner, emit(R.subtract(c, d))], 1))
        return R.nn.relu(outer)

    specs: list[Spec] = [((9011, width), "float16") for width in (8, 16, 24, 24)]
    mod = build(body, *specs)
    assert {widest_load(cuda_source(mod), f"x{i}") for i in range(4)} == {16}
    check_emulated(mod, draw(specs))


def test_one_input_below_and_above_a_condition() -> None:
    def body(emit: Emit, a: Any, b: Any) -> Any:
        wide = emit(R.concat([emit(R.add(a, b)), emit(R.subtract(a, b))], 1))
        return R.multiply(wide, emit(R.concat([b, emit(R.exp(a))], 1)))

    specs: list[Spec] = [((5003, 48), "float16")] * 2
    mod = build(body, *specs)
    check_emulated(mod, draw(specs))


@pytest.mark.parametrize("columns", [(512, 256), (24, 8), (13, 51)])
def test_rows_of_sums(columns: tuple[int, int]) -> None:
    """A softmax of rows that sums and another tensor make together."""

    def body(emit: Emit, a: Any, b: Any, c: Any) -> Any:
        y = emit(R.concat([emit(R.add(a, b)), c], 1))
        y = emit(R.exp(emit(R.subtract(y, emit(R.max(y, 1, keepdims=True))))))
        return R.divide(y, emit(R.sum(y, 1, keepdims=True)))

    first, second = columns
    specs: list[Spec] = [((37, first), "float32"), ((37, first), "float32"), ((37, second), "float32")]
    check_emulated(build(body, *specs), draw(specs))


def test_a_slice_of_one_part_reads_that_part_alone() -> None:
    """A condition that all columns of a stage share is decided when the kernel is compiled."""

    def body(emit: Emit, a: Any, b: Any, c: Any) -> Any:
        wide = emit(R.concat([emit(R.add(a, b)), c], 1))
        return R.nn.relu(emit(R.strided_slice(wide, [1], [0], [32])))

    specs: list[Spec] = [((60013, 32), "float16"), ((60013, 32), "float16"), ((60013, 16), "float16")]
    mod = build(body, *specs)
    source = cuda_source(mod)
    assert widest_load(source, "x0") == 16 and "x2_ptr[" not in source
    check_emulated(mod, draw(specs))
