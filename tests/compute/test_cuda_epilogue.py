# SPDX-License-Identifier: Apache-2.0
"""Which graphs are epilogues of a convolution, and along which axes they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.compute.cuda_epilogue import Epilogue, epilogue_of
from tvm_stitch.failures import Refusal
from tvm_stitch.graph.reader import read
from tvm_stitch.relax.mark import MergeStitchOps
from tvm_stitch.relax.stitch_ops import STITCH_ATTR, StitchOps

SHAPE = (2, 6, 5, 4)


def epilogue(body: Callable[..., Any], *others: Sequence[int], dtype: str = "float32") -> Epilogue:
    """What a stitch op is behind a convolution whose result is the module's first parameter."""
    mod = build(body, (SHAPE, "float32"), *((shape, dtype) for shape in others))
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        mod = MergeStitchOps()(StitchOps()(relax.transform.LegalizeOps()(mod)))
    (func,) = [f for f in mod.functions.values() if f.attrs and STITCH_ATTR in f.attrs]
    graph = read(func, "f")
    (product,) = [tensor for tensor in graph.inputs if tensor.name == "x0"]
    return epilogue_of(graph, product)


def test_axes_of_operands() -> None:
    def body(emit: Any, x: Any, bias: Any, residual: Any, gate: Any, scale: Any) -> Any:
        y = emit(R.add(emit(R.add(x, bias)), residual))
        return emit(R.nn.relu(emit(R.multiply(emit(R.multiply(y, gate)), scale))))

    found = epilogue(body, (1, 6, 1, 1), SHAPE, (2, 6, 1, 1), (1, 1, 1, 1))
    assert {tensor.name: axes for tensor, axes in found.operands} == {
        "x1": (None, 1, None, None),
        "x2": (0, 1, 2, 3),
        "x3": (0, 1, None, None),
        "x4": (None, None, None, None),
    }


def test_several_results() -> None:
    def body(emit: Any, x: Any, residual: Any) -> Any:
        y = emit(R.add(x, residual))
        return [y, emit(R.nn.relu(y))]

    assert len(epilogue(body, SHAPE).graph.outputs) == 2


@pytest.mark.parametrize(
    ("body", "others"),
    [
        (lambda emit, x: emit(R.nn.relu(emit(R.permute_dims(x, [0, 1, 3, 2])))), ()),
        (lambda emit, x: emit(R.exp(emit(R.sum(x, axis=[2, 3], keepdims=True)))), ()),
        (lambda emit, x: emit(R.nn.softmax(x)), ()),
        (lambda emit, x: emit(R.add(x, emit(R.max(x, axis=[0], keepdims=True)))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1])))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.strided_slice(x, [1], [0], [3])))), ()),
        (lambda emit, x: emit(R.nn.relu(emit(R.reshape(x, (12, 20))))), ()),
        (lambda emit, x, row: emit(R.nn.relu(emit(R.add(x, row)))), ((4,),)),
        (lambda emit, x, part: emit(R.add(x, emit(R.strided_slice(part, [1], [1], [7])))), ((2, 8, 5, 4),)),
        (lambda emit, x: emit(R.astype(x, "int8")), ()),
    ],
)
def test_others_are_refused(body: Callable[..., Any], others: tuple[Any, ...]) -> None:
    with pytest.raises(Refusal):
        epilogue(body, *others)


def test_an_operand_of_another_dtype_is_refused() -> None:
    with pytest.raises(Refusal, match="of int32"):
        epilogue(lambda emit, x, y: emit(R.add(x, emit(R.astype(y, "float32")))), SHAPE, dtype="int32")
