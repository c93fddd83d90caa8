# SPDX-License-Identifier: Apache-2.0
"""The calls of cuDNN compile without it, refuse what is no convolution, and say what they lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvm_stitch.compute.cuda import library

DATA, WEIGHT, OUT = (1, 4, 5, 5), (6, 2, 3, 3), (1, 6, 3, 3)
NUMBERS = [2, 1, 1, 0, 0, 1, 1]  # groups, strides, paddings, dilations


def call(
    data: tuple[int, ...] = DATA,
    weight: tuple[int, ...] = WEIGHT,
    out: tuple[int, ...] = OUT,
    numbers: list[int] = NUMBERS,
    mode: str = "channels_first",
    dtype: str = "float32",
    more: tuple[tuple[int, ...], ...] = (),
) -> None:
    def tensor(shape: tuple[int, ...], kind: str) -> Any:
        return tvm.runtime.tensor(np.ones(shape, kind))

    function = library.CUDNN.calls.module()[library.CUDNN.function]
    tensors = [tensor(shape, dtype) for shape in (data, weight, *more)]
    operands = *tensors, tvm_ffi.Shape(numbers), mode
    function(*operands, tensor(out, dtype), tensor((16,), "uint8"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": ""}, "the mode of a convolution names no layout"),
        ({"mode": "channels_first fast"}, "no mode of a convolution: fast"),
        ({"dtype": "float64"}, "of float32, float16 or bfloat16"),
        ({"numbers": [2, 1, 1, 0, 0, 1]}, "a convolution of 2 axes has 7 numbers"),
        ({"numbers": [1, 1, 1, 0, 0, 1, 1]}, "do not fit its result"),
        ({"numbers": [2, 0, 1, 0, 0, 1, 1]}, "do not fit its result"),
        ({"numbers": [2, 1, 1, 1, 0, 1, 1]}, "do not fit its result"),
        ({"out": (1, 6, 3, 4)}, "do not fit its result"),
        ({"mode": "channels_last"}, "do not fit its result"),
        ({"out": (1, 6, 9)}, "one to three spatial axes"),
        ({"data": (2, 2), "weight": (2, 2), "out": (2, 2)}, "one to three spatial axes"),
        ({"mode": "channels_first bias"}, "names other operands"),
        ({"more": ((6,),)}, "names other operands"),
        ({"mode": "channels_first relu"}, "with a residual or ReLU has a bias"),
        (
            {"mode": "channels_first weight_gradient bias", "more": ((6,),)},
            "a gradient of a convolution has no bias",
        ),
        ({"mode": "channels_first bias", "more": ((5,),)}, "the bias of a convolution does not fit"),
        (
            {"mode": "channels_first bias residual", "more": ((6,), (1, 6, 3, 2))},
            "the residual of a convolution",
        ),
    ],
)
def test_wrong_calls_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        call(**given)


def test_convolutions_without_elements_need_no_library() -> None:
    call((0, *DATA[1:]), out=(0, *OUT[1:]))


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU")
@pytest.mark.parametrize(
    ("data", "weight", "out", "mode"),
    [
        (DATA, WEIGHT, OUT, "channels_first timed"),
        ((1, 5, 5, 4), (6, 3, 3, 2), (1, 3, 3, 6), "channels_last tf32"),
        (DATA, WEIGHT, OUT, "channels_first bias residual relu"),
    ],
)
def test_what_is_missing_is_told(
    data: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], mode: str
) -> None:
    with pytest.raises(Exception, match="tvm_stitch: no CUDA driver"):
        call(data, weight, out, mode=mode, more=((6,), out) if "bias" in mode else ())
