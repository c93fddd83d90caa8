# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution's weight are asked of cuDNN as such, and mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.relax.library.test_convolutions import draw, modes, rewritten, run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("cudnn_in_numpy")
GRADIENT = "channels_first timed weight_gradient"
Shape = tuple[int, ...]
OPERATORS = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}


def module(x: Shape, g: Shape, kernel: Shape, stride: int, padding: int, dilation: int) -> tvm.IRModule:
    """Build the gradient as importers write it: images and channels exchanged, strides and dilations too, and cut."""
    spatial = range(2, len(x))

    def body(emit: Any, x: Any, g: Any) -> Any:
        data, weight = (emit(R.permute_dims(v, [1, 0, *spatial])) for v in (x, g))
        found = emit(
            OPERATORS[len(g.ty.shape)](data, weight, strides=dilation, padding=padding, dilation=stride)
        )
        if tuple(map(int, found.ty.shape))[2:] != kernel:
            axes = list(spatial)
            found = emit(R.strided_slice(found, axes, [0] * len(axes), list(kernel)))
        return R.permute_dims(found, [1, 0, *spatial])

    return build(body, (x, "float32"), (g, "float32"))


CASES = [
    ((2, 3, 9, 8), (4, 3, 3), 1, 1, 1),
    ((2, 3, 9, 8), (4, 3, 3), 2, 1, 1),  # cut
    ((3, 2, 11, 11), (5, 3, 2), 1, 2, 2),
    ((2, 3, 8, 8), (4, 1, 1), 2, 0, 1),
    ((2, 3, 17), (4, 5), 3, 2, 1),
    ((1, 2, 6, 5, 7), (3, 2, 1, 3), 1, 0, 1),
]


@pytest.mark.parametrize(("shape", "weight", "stride", "padding", "dilation"), CASES)
def test_gradients_mean_the_same(
    shape: Shape, weight: Shape, stride: int, padding: int, dilation: int
) -> None:
    outputs, *kernel = weight
    function = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[len(shape)]
    x = draw(*shape)
    w = torch.zeros((outputs, shape[1], *kernel), dtype=torch.float64, requires_grad=True)
    y = function(torch.tensor(x).double(), w, None, stride, padding, dilation)
    g = draw(*y.shape)
    y.backward(torch.tensor(g).double())
    made, how = rewritten(module(shape, tuple(y.shape), tuple(kernel), stride, padding, dilation))
    assert modes(made) == [GRADIENT]
    assert how == ["cuDNN: channels first, a weight's gradient"]
    assert w.grad is not None
    np.testing.assert_allclose(run(made, x, g), w.grad.numpy(), 1e-5, 1e-5)


def exchanged(x: Shape, g: Shape, **attrs: Any) -> tvm.IRModule:
    def body(emit: Any, x: Any, g: Any) -> Any:
        data, weight = (emit(R.permute_dims(v, [1, 0, 2, 3])) for v in (x, g))
        return R.nn.conv2d(data, weight, **attrs)

    return build(body, (x, "float32"), (g, "float32"))


def of_one_side() -> tvm.IRModule:
    def body(emit: Any, x: Any, g: Any) -> Any:
        return R.nn.conv2d(emit(R.permute_dims(x, [1, 0, 2, 3])), g)

    return build(body, ((2, 3, 9, 8), "float32"), ((4, 2, 7, 6), "float32"))


def of_other_axes() -> tvm.IRModule:
    def body(emit: Any, x: Any, g: Any) -> Any:
        data, weight = (emit(R.permute_dims(v, [1, 0, 3, 2])) for v in (x, g))
        return R.nn.conv2d(data, weight)

    return build(body, ((2, 3, 9, 8), "float32"), ((2, 4, 7, 6), "float32"))


def cut_from_behind() -> tvm.IRModule:
    def body(emit: Any, x: Any, g: Any) -> Any:
        data, weight = (emit(R.permute_dims(v, [1, 0, 2, 3])) for v in (x, g))
        found = emit(R.nn.conv2d(data, weight, padding=1, dilation=2))
        return R.strided_slice(found, [2, 3], [0, 0], [-1, 3])

    return build(body, ((2, 3, 8, 8), "float32"), ((2, 4, 4, 4), "float32"))


OTHERS = {
    "a small window": exchanged((2, 3, 9, 8), (2, 4, 3, 3)),
    "places that do not end with the data": exchanged((2, 3, 12, 12), (2, 4, 9, 9), strides=3, padding=1),
    "one side": of_one_side(),
    "other axes": of_other_axes(),
    "a cut that would cut again": cut_from_behind(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_are_convolutions(other: str) -> None:
    made, _ = rewritten(OTHERS[other])
    assert modes(made) == ["channels_first timed"]


def test_what_else_reads_the_result_sees_all_of_it() -> None:
    """A result that is cut for one reader only is computed in full."""

    def body(emit: Any, x: Any, g: Any) -> Any:
        data, weight = (emit(R.permute_dims(v, [1, 0, 2, 3])) for v in (x, g))
        found = emit(R.nn.conv2d(data, weight, padding=1, dilation=2))
        return relax.Tuple([emit(R.strided_slice(found, [2, 3], [0, 0], [3, 3])), found])

    made, _ = rewritten(build(body, ((2, 3, 8, 8), "float32"), ((2, 4, 4, 4), "float32")))
    result = made["main"].ret_ty if hasattr(made["main"], "ret_ty") else made["main"].ty.ret
    assert [tuple(map(int, field.shape)) for field in result.fields] == [(3, 4, 3, 3), (3, 4, 4, 4)]
