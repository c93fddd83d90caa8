# SPDX-License-Identifier: Apache-2.0
"""Convolutions that a template takes get channels that are innermost. The rest of the module stays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.constants.views import ConstantViews
from tvm_stitch.relax.layout.convolutions import ConvolutionLayouts, suits_library
from tvm_stitch.relax.layout.full_rank import full_rank_operands
from tvm_stitch.relax.rewriting.templates import suits_templates


def weight(*shape: int, dtype: str = "float32") -> Any:
    return relax.const(np.ones(shape, dtype), dtype)


def layouts(mod: tvm.IRModule) -> list[str]:
    return [call.attrs.data_layout for call in convolutions(mod)]


def kernels(mod: tvm.IRModule) -> list[str]:
    return [call.attrs.kernel_layout for call in convolutions(mod)]


def convolutions(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []

    def visit(e: Any) -> None:
        if isinstance(e, relax.Call) and "conv" in getattr(e.op, "name", ""):
            found.append(e)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def chain(emit: Any, x: Any) -> list[Any]:
    y = emit(R.nn.relu(emit(R.nn.conv2d(x, weight(8, 3, 3, 3)))))
    return [R.nn.conv2d(y, weight(4, 8, 1, 1))]


def transposes(mod: tvm.IRModule, name: str = "relax.permute_dims") -> int:
    count = 0

    def visit(e: Any) -> None:
        nonlocal count
        is_one = isinstance(e, relax.Call) and getattr(e.op, "name", "") == name
        count += is_one and isinstance(e.args[0], relax.Var)

    relax.analysis.post_order_visit(mod["main"], visit)
    return count


def test_a_chain_is_transposed_at_its_ends() -> None:
    mod = ConvolutionLayouts(suits_templates)(build(chain, ((1, 3, 8, 8), "float32")))
    assert layouts(mod) == ["NHWC", "NHWC"] and transposes(mod) == 2


@pytest.mark.parametrize("as_constant", [True, False])
@pytest.mark.parametrize("shape", [(8, 1, 1), (8,), (1,), (), (8, 8), (6, 1, 1, 1)])
def test_operands_of_fewer_axes_leave_a_chain_whole(shape: tuple[int, ...], as_constant: bool) -> None:
    def chain_with(emit: Any, x: Any, beside: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, weight(8, 3, 1, 1)))
        y = emit(R.add(y, weight(*shape) if as_constant else beside))
        return [R.nn.conv2d(y, weight(4, 8, 1, 1))]

    mod = build(chain_with, ((6, 3, 8, 8), "float32"), (shape, "float32"))
    made = ConvolutionLayouts(suits_templates)(mod)
    assert layouts(made) == ["NHWC", "NHWC"]
    assert transposes(made) == 2 + bool(shape and not as_constant)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    counts = [count_kernels(mod, target, passes) for passes in (pipeline(target), None)]
    assert len(counts[0].launches) <= len(counts[1].launches)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (1, 1, 1, 1), (8, 1, 1), (6, 8, 8, 8)])
@pytest.mark.parametrize("operator", [R.add, R.multiply, R.subtract, R.maximum])
def test_constants_as_first_operands_leave_a_chain_whole(operator: Any, shape: tuple[int, ...]) -> None:
    """TVM gives a result the layout of its first operand."""

    def chain_with(emit: Any, x: Any) -> list[Any]:
        y = emit(R.nn.conv2d(x, weight(8, 3, 1, 1)))
        y = emit(R.nn.pad(emit(operator(weight(*shape), y)), [0, 0, 0, 0, 0, 1, 0, 1]))
        return [R.nn.conv2d(y, weight(4, 8, 1, 1))]

    mod = build(chain_with, ((6, 3, 8, 8), "float32"))
    made = ConvolutionLayouts(suits_templates)(mod)
    one = np.prod(shape) == 1
    assert transposes(made) == (2 if one or operator in (R.add, R.multiply) else 4)
    x = tvm.runtime.tensor(np.random.default_rng(0).normal(size=(6, 3, 8, 8)).astype("float32"))
    made = ConstantViews()(made)
    want, got = (relax.VirtualMachine(tvm.compile(m, "llvm"), tvm.cpu())["main"](x) for m in (mod, made))
    np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_constant_of_one_element_keeps_the_axes_that_a_result_has_from_it(rank: int) -> None:
    mod = build(lambda emit, x: [R.multiply(weight(*[1] * rank), x)], ((5, 4)[-rank:], "float32"))
    assert list(full_rank_operands(mod)["main"].ret_ty.shape) == list(mod["main"].ret_ty.shape)


def test_only_what_is_broadcast_gets_axes() -> None:
    mod = build(lambda emit, x, w: [R.matmul(x, w)], ((2, 3, 4), "float32"), ((4, 5), "float32"))
    tvm.ir.assert_structural_equal(full_rank_operands(mod), mod)
    mod = build(lambda emit, x, y: [R.add(x, y)], ((2, 3, 4), "float32"), ((4,), "float32"))
    assert transposes(full_rank_operands(mod), "relax.expand_dims") == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "made"),
    [
        ((1, 3, 8, 8), "float64", lambda x: R.nn.conv2d(x, weight(8, 3, 3, 3, dtype="float64"))),
        ((1, 3, symbol("h"), 8), "float32", lambda x: R.nn.conv2d(x, weight(8, 3, 3, 3))),
        ((1, 8, 8, 3), "float32", lambda x: R.nn.conv2d(
            x, weight(8, 3, 3, 3), data_layout="NHWC", kernel_layout="OHWI"
        )),
    ],
)  # fmt: skip
def test_others_stay(shape: Any, dtype: str, made: Any) -> None:
    mod = build(lambda emit, x: [made(x)], (shape, dtype))
    tvm.ir.assert_structural_equal(ConvolutionLayouts(suits_templates)(mod), mod)


def both(emit: Any, x: Any, w: Any) -> list[Any]:
    return [R.nn.conv2d(emit(R.nn.conv2d(x, w)), weight(4, 8, 1, 1))]


def test_weights_that_are_no_constants_keep_their_layout() -> None:
    mod = build(both, ((1, 3, 8, 8), "float32"), ((8, 3, 3, 3), "float32"))
    assert layouts(ConvolutionLayouts(suits_templates)(mod)) == ["NCHW", "NHWC"]
    made = ConvolutionLayouts(suits_templates, constant=False)(mod)
    assert layouts(made) == ["NHWC", "NHWC"] and kernels(made) == ["OIHW", "OHWI"]


def test_a_gradient_of_a_convolution_keeps_its_layout() -> None:
    """It is a transposed convolution by the same weight."""

    def body(emit: Any, x: Any, w: Any) -> list[Any]:
        return [R.nn.conv2d_transpose(emit(R.nn.relu(emit(R.nn.conv2d(x, w)))), w)]

    mod = build(body, ((1, 3, 8, 8), "float32"), ((4, 3, 3, 3), "float32"))
    assert layouts(ConvolutionLayouts(suits_templates, constant=False)(mod)) == ["NHWC", "NCHW"]


def test_transposed_convolutions_need_constants() -> None:
    mod = build(
        lambda emit, x, w: [R.nn.conv2d_transpose(x, w)], ((1, 3, 8, 8), "float32"), ((3, 4, 3, 3), "float32")
    )
    tvm.ir.assert_structural_equal(ConvolutionLayouts(suits_templates, constant=False)(mod), mod)


@pytest.mark.parametrize(
    ("dtype", "tf32", "layout"),
    [
        ("float32", False, "NCHW"),
        ("float32", True, "NHWC"),
        ("float16", False, "NHWC"),
        ("float64", True, "NCHW"),
    ],
)
def test_tensor_cores_take_channels_innermost(dtype: str, tf32: bool, layout: str) -> None:
    mod = build(lambda emit, x: R.nn.conv2d(x, weight(8, 3, 3, 3, dtype=dtype)), ((1, 3, 8, 8), dtype))
    assert layouts(ConvolutionLayouts(partial(suits_library, tf32))(mod)) == [layout]
