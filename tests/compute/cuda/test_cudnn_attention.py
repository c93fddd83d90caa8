# SPDX-License-Identifier: Apache-2.0
"""The calls of cuDNN's attention compile without it, refuse wrong calls, and run the kernel elsewhere than on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_stitch.compute.cuda import library

SIZES = [2, 4, 2, 3, 5, 8, 0]  # batches, heads, heads of keys, queries, keys, size, offset
ROWS = [0, 96, 8, 32, 0, 80, 8, 16, 0, 80, 8, 16, 0, 96, 8, 32]
OF_MASK = [0, 0, 0, 5]


def call(
    numbers: list[int] | None = None,
    mode: str = "scale=0x1p-2",
    masked: bool = False,
    dtype: str = "float16",
    out_dtype: str = "float16",
    out: tuple[int, ...] = (2, 3, 4, 8),
) -> list[tuple[Any, ...]]:
    """Call the function on the CPU, and return the arguments of the calls of the kernel."""
    calls: list[tuple[Any, ...]] = []

    def tensor(shape: tuple[int, ...], kind: str) -> Any:
        return tvm.runtime.tensor(np.ones(shape, kind))

    inputs = [tensor((2, 3, 4, 8), dtype), tensor((2, 5, 2, 8), dtype), tensor((2, 5, 2, 8), dtype)]
    inputs += [tensor((3, 5), "float32")] if masked else []
    kernel = tvm_ffi.convert(lambda *args: calls.append(args))
    told = numbers or [*SIZES, *ROWS, *(OF_MASK if masked else [])]
    function = library.CUDNN_ATTENTION.calls.module()[library.CUDNN_ATTENTION.function]
    given = kernel, tvm_ffi.Shape([7, 9]), tvm_ffi.Shape(told), mode
    function(*inputs, *given, tensor(out, out_dtype), tensor((16,), "uint8"))
    return calls


@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_runs_where_the_library_does_not(masked: bool) -> None:
    (args,) = call(mode="causal timed scale=0x1p-2" + (" masked" if masked else ""), masked=masked)
    shapes = [tuple(int(e) for e in arg.shape) for arg in args if hasattr(arg, "shape")]
    mask = [(3, 5)] if masked else []
    assert shapes == [(2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8), *mask, (2, 3, 4, 8)]
    assert list(args[-3:-1]) == [7, 9]


def test_results_without_elements_need_no_kernel() -> None:
    numbers = [*SIZES[:3], 0, *SIZES[4:], *ROWS]
    assert call(numbers, out=(2, 0, 4, 8)) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "scale=0x1p-2 quick"}, "no mode of attention: quick"),
        ({"mode": "scale=much"}, "no number in a mode: scale=much"),
        ({"mode": "masked scale=1"}, "the mode of attention names other operands"),
        ({"masked": True}, "the mode of attention names other operands"),
        ({"numbers": SIZES}, "attention has 23 numbers, not 7"),
        ({"numbers": [2, 4, 3, *SIZES[3:], *ROWS]}, "4 heads of queries do not share 3 heads of keys"),
        ({"numbers": [*SIZES, 8, *ROWS[1:]]}, "q of attention has 192 elements, its layout needs 200"),
        ({"numbers": [*SIZES, *ROWS[:-1], 40]}, "the result of attention has 192 elements"),
        ({"numbers": [*SIZES, *ROWS[:-1], -32]}, "the result of attention has 192 elements"),
        ({"dtype": "float64"}, "of float32, float16 or bfloat16"),
        ({"out_dtype": "float32"}, "have one dtype"),
    ],
)
def test_wrong_calls_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        call(**given)
