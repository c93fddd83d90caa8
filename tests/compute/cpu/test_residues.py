# SPDX-License-Identifier: Apache-2.0
"""Windows over data that is spread out, as windows over the data itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from tvm_stitch.compute.anchored import anchored
from tvm_stitch.compute.convolution import Convolution
from tvm_stitch.compute.cpu.residues import Taps, Window
from tvm_stitch.graph.reader import read
from tvm_stitch.relax.legalize.input_dilation import over_dilated_input
from tvm_stitch.support.failures import Refusal


def convolution(places: int, kernel: int, stride: int, padding: int, dilation: int = 1, more: int = 0) -> Any:
    """Build a transposed convolution of one axis, two channels read and three written."""
    wide = [[tvm.tirx.IntImm("int64", n) for n in shape] for shape in ((1, places, 2), (3, kernel, 2))]
    data, weight = (te.placeholder(shape, "float32", name) for shape, name in zip(wide, "xw"))
    made = over_dilated_input(data, weight, [stride], [padding] * 2, [dilation], 1, [more], "float32")
    found = anchored(read(te.create_prim_func([data, weight, made]), "f")).product
    assert isinstance(found, Convolution) and found.divided is not None
    return found


def test_the_residues_of_a_stride_of_two() -> None:
    conv = convolution(5, 4, 2, 1)
    assert conv.windows == (Window(1, 1, 1, 1), Window(5, 3, 1, 1))
    assert conv.residues.lengths == (1, 10) and conv.residues.kernel == (1, 4)
    assert [residue[1] for residue in conv.residues.each] == [
        Taps(0, 2, 5, 2, 1, 0, range(0, 4, 2)),
        Taps(1, 2, 5, 2, 1, 1, range(1, 4, 2)),
    ]
    assert conv.data.before == (0, 0, 1, 0) and conv.data.shape == (1, 1, 7, 2)
    assert conv.reductions == [4, 4] and conv.reduction == 8 and conv.rows == 10 and not conv.is_pointwise


def test_data_without_a_border_is_read_as_it_lies() -> None:
    conv = convolution(5, 2, 2, 0)
    assert conv.data.is_plain and not conv.is_pointwise


CASES = [
    (5, 3, 2, 1, 1, 0), (5, 3, 2, 1, 1, 1), (4, 1, 3, 0, 1, 2), (4, 3, 4, 0, 2, 0), (4, 3, 6, 2, 4, 1),
    (1, 5, 3, 2, 1, 0), (7, 3, 2, 4, 1, 0), (2, 7, 3, 0, 3, 0), (3, 2, 5, 1, 3, 4),
]  # fmt: skip


@pytest.mark.parametrize(("places", "kernel", "stride", "padding", "dilation", "more"), CASES)
def test_residues_are_what_windows_see(
    places: int, kernel: int, stride: int, padding: int, dilation: int, more: int
) -> None:
    conv = convolution(places, kernel, stride, padding, dilation, more)
    before, seen = conv.data.before[2], {}
    for *_, taps in conv.residues.each:
        for y in range(taps.outputs):
            read_at = [y + taps.offset + m * taps.dilation - before for m in range(taps.kernel)]
            pairs = zip(read_at, taps.weights)
            seen[taps.first + y * taps.step] = {(i, u) for i, u in pairs if 0 <= i < places}
    length = (places - 1) * stride + 1 + (kernel - 1) * dilation - 2 * padding + more
    wanted: dict[int, set[tuple[int, int]]] = {o: set() for o in range(length)}
    for i, u in np.ndindex(places, kernel):
        o = i * stride + (kernel - 1 - u) * dilation - padding  # u is of the weight turned around
        if 0 <= o < length:
            wanted[o].add((i, u))
    assert seen == wanted


def spread(value: float, index: Any, condition: Any) -> Any:
    """Build a window over data with an input dilation of its own."""
    x = te.placeholder((1, 5, 2), "float32", "x")
    w = te.placeholder((3, 2, 2), "float32", "w")
    wide = te.compute(
        (1, 9, 2),
        lambda n, i, c: tvm.tirx.if_then_else(
            condition(i), x[n, index(i), c], tvm.tirx.const(value, "float32")
        ),
        "wide",
    )
    k, c = te.reduce_axis((0, 2), "k"), te.reduce_axis((0, 2), "c")
    y = te.compute((1, 8, 3), lambda n, i, f: te.sum(wide[n, i + k, c] * w[f, k, c], [k, c]), "y")
    return te.create_prim_func([x, w, y])


def test_other_ways_to_spread_data_are_refused() -> None:
    def half(i: Any) -> Any:
        return i // 2

    anchored(read(spread(0.0, half, lambda i: i % 2 == 0), "f"))
    for func in (
        spread(1.0, half, lambda i: i % 2 == 0),
        spread(0.0, half, lambda i: i % 2 == 1),
        spread(0.0, half, lambda i: i % 4 == 0),
        spread(0.0, half, lambda i: i < 7),
        spread(0.0, lambda i: i // 3, lambda i: i % 2 == 0),
    ):
        with pytest.raises(Refusal, match="computed in the same kernel"):
            anchored(read(func, "f"))
