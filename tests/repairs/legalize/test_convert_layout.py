# SPDX-License-Identifier: Apache-2.0
"""Layouts go through every operator that is said to carry them, and results stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tests.repairs import faults
from tvm_stitch.records.decisions import decisions_of
from tvm_stitch.relax.constants.views import ConstantViews
from tvm_stitch.relax.layout.convolutions import ConvolutionLayouts
from tvm_stitch.relax.legalize.input_dilation import TRANSPOSED_CONVOLUTIONS
from tvm_stitch.relax.rewriting.operators import BROADCASTING
from tvm_stitch.repairs.legalize.convert_layout import PROPAGATED, converted_where_propagated

RNG = np.random.default_rng(0)
CONSTANT = np.random.default_rng(1)

Body = Callable[[Any, Any], Any]


def const(*shape: int) -> Any:
    return relax.const((0.2 * CONSTANT.normal(size=shape)).astype("float32"))


def first(value: Any) -> Any:
    return relax.TupleGetItem(value, 0)


def _batch_norm(emit: Any, y: Any) -> Any:
    variance = relax.const(np.ones(8, "float32"))
    return first(emit(R.nn.batch_norm(y, const(8), const(8), const(8), variance, 1)))


CASES: dict[str, list[Body]] = {  # of a convolution's result, (2, 8, 5, 7)
    **{
        f"relax.{name}": [
            lambda _, y, name=name: getattr(R, name)(y, [1], keepdims=True),
            lambda _, y, name=name: getattr(R, name)(y, [-1, 2]),
        ]
        for name in ("max", "mean", "min", "prod", "std", "sum", "variance")
    },
    "relax.nn.batch_norm": [_batch_norm],
    "relax.nn.group_norm": [lambda _, y: R.nn.group_norm(y, const(8), const(8), 2, 1, [2, 3])],
    "relax.nn.instance_norm": [lambda _, y: R.nn.instance_norm(y, const(8), const(8), 1, [2, 3])],
    "relax.nn.layer_norm": [
        lambda _, y: R.nn.layer_norm(y, const(7), const(7), [-1]),
        lambda _, y: R.nn.layer_norm(y, const(8), const(8), [1]),
        lambda _, y: R.nn.layer_norm(y, const(8, 5, 7), const(8, 5, 7), [1, 2, 3]),
    ],
    "relax.nn.rms_norm": [
        lambda _, y: R.nn.rms_norm(y, const(7), [-1]),
        lambda _, y: R.nn.rms_norm(y, const(5, 7), [-2, -1]),
    ],
    "relax.nn.prelu": [
        lambda _, y: R.nn.prelu(y, const(8), 1),
        lambda _, y: R.nn.prelu(y, const(7), -1),
    ],
    "relax.nn.softmax": [lambda _, y: R.nn.softmax(y, 1), lambda _, y: R.nn.softmax(y, -1)],
    "relax.image.resize2d": [lambda _, y: R.image.resize2d(y, (9, 11), method="linear")],
    "relax.nn.adaptive_avg_pool2d": [lambda _, y: R.nn.adaptive_avg_pool2d(y, [2, 3])],
    "relax.nn.avg_pool2d": [lambda _, y: R.nn.avg_pool2d(y, [2, 3], padding=[1, 1, 0, 0], ceil_mode=True)],
    "relax.nn.max_pool2d": [lambda _, y: R.nn.max_pool2d(y, [2, 2])],
    "relax.nn.conv2d": [lambda _, y: R.nn.conv2d(y, const(4, 2, 3, 3), groups=4, strides=[2, 1])],
    "relax.nn.conv2d_transpose": [
        lambda _, y: R.nn.conv2d_transpose(y, const(8, 3, 3, 3), strides=[2, 2]),
        lambda _, y: R.nn.conv2d_transpose(y, const(8, 3, 2, 3), strides=[3, 2], padding=[0, 1], groups=4),
    ],
    "relax.nn.dropout": [lambda emit, y: first(emit(R.nn.dropout(y, 0.0)))],
    "relax.concat": [
        lambda emit, y: R.concat([y, emit(R.tanh(y))], 1),
        lambda emit, y: R.concat([y, emit(R.tanh(y))], -1),
        lambda _, y: R.concat([y, const(2, 8, 5, 7)], 1),
    ],
    "relax.stack": [
        lambda emit, y: R.stack([y, emit(R.tanh(y))], 1),
        lambda emit, y: R.stack([y, emit(R.tanh(y))], -1),
    ],
    "relax.expand_dims": [lambda _, y: R.expand_dims(y, [2, 4]), lambda _, y: R.expand_dims(y, [-1])],
    "relax.squeeze": [
        lambda emit, y: R.squeeze(emit(R.sum(y, [1], keepdims=True)), [1]),
        lambda emit, y: R.squeeze(emit(R.sum(y, [3], keepdims=True)), [-1]),
        lambda emit, y: R.squeeze(emit(R.sum(y, [3], keepdims=True))),
    ],
    "relax.permute_dims": [
        lambda _, y: R.permute_dims(y),
        lambda _, y: R.permute_dims(y, [0, 2, 1, 3]),
        lambda _, y: R.permute_dims(y, [0, -1, 1, -2]),
    ],
    "relax.flip": [lambda _, y: R.flip(y, 1), lambda _, y: R.flip(y, -1)],
    "relax.repeat": [
        lambda _, y: R.repeat(y, 2, 1),
        lambda _, y: R.repeat(y, 2, -1),
        lambda _, y: R.repeat(y, 2),
    ],
    "relax.tile": [
        lambda _, y: R.tile(y, [1, 2, 1, 3]),
        lambda _, y: R.tile(y, [2, 3]),
        lambda _, y: R.tile(y, [2, 1, 2, 1, 3]),
    ],
    "relax.split": [
        lambda emit, y: first(emit(R.split(y, [3], 1))),
        lambda emit, y: first(emit(R.split(y, 2, -3))),
    ],
    "relax.strided_slice": [
        lambda _, y: R.strided_slice(y, [1, 3], [1, 0], [6, 5], [2, 2]),
        lambda _, y: R.strided_slice(y, [-3], [1], [6]),
    ],
    "relax.nn.pad": [
        lambda _, y: R.nn.pad(y, [0, 0, 0, 0, 1, 2, 0, 3], pad_value=2.5),
        lambda _, y: R.nn.pad(y, [0, 0, 0, 0, -1, 1, 3, -2]),
        lambda _, y: R.nn.pad(y, [0, 0, 0, 0, -1, 0, 3, 0]),
        lambda emit, y: R.add(emit(R.nn.pad(y, [0, 0, 2, 1, 1, 0, 0, 0])), const(2, 11, 6, 7)),
        lambda _, y: R.nn.pad(y, [0, 0, 0, 0, 1, 2, 3, 0], "reflect"),
        lambda emit, y: R.nn.pad(emit(R.astype(y, "int8")), [0, 0, 0, 0, 1, 2, 0, 3], pad_value=-7.0),
    ],
    "relax.nn.max_pool2d of one element": [
        lambda _, y: R.nn.max_pool2d(y, [1, 1], padding=[1, 0, 2, 0], dilation=[1 << 20, 1]),
    ],
    "relax.where": [lambda _, y: R.where(relax.const(np.arange(8).reshape(8, 1, 1) % 3 > 0), y, const(7))],
}


def converted(body: Body, rank: int = 2) -> tuple[tvm.IRModule, tvm.IRModule]:
    """Return a module in which ``body`` follows a convolution over ``rank`` axes, and one with channels innermost."""
    convolution = getattr(R.nn, f"conv{rank}d")
    weight = const(8, 3, *[3] * rank)

    def chain(emit: Any, x: Any) -> list[Any]:
        made = emit(body(emit, emit(convolution(x, weight, padding=1))))
        return [R.multiply(made, relax.const(0.5)) if made.ty.dtype == "float32" else made]

    mod = build(chain, ((2, 3, *(5, 7, 4)[:rank]), "float32"))
    made = ConvolutionLayouts(lambda _call, _read_last: True)(mod)
    assert not decisions_of(made).computed
    return mod, made


def check(body: Body, rank: int = 2) -> None:
    mod, made = converted(body, rank)
    x = tvm.runtime.tensor(RNG.normal(size=(2, 3, *(5, 7, 4)[:rank])).astype("float32"))
    legalize = relax.transform.LegalizeOps(TRANSPOSED_CONVOLUTIONS)
    made = tvm.transform.Sequential([ConstantViews(), legalize])(
        made
    )  # in layouts that TVM legalizes none of
    want, got = (relax.VirtualMachine(tvm.compile(m, "llvm"), tvm.cpu())["main"](x) for m in (mod, made))
    np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("name", "number"), [(n, i) for n, bodies in CASES.items() for i in range(len(bodies))]
)
def test_results_stay(name: str, number: int) -> None:
    check(CASES[name][number])


def test_of_one_axis_and_of_three() -> None:
    check(lambda emit, y: R.nn.adaptive_avg_pool1d(emit(R.nn.max_pool1d(y, 2, padding=1)), 2), 1)
    check(lambda emit, y: R.nn.conv1d(emit(R.nn.avg_pool1d(y, 2)), const(4, 8, 2)), 1)
    check(lambda emit, y: R.nn.adaptive_avg_pool3d(emit(R.nn.max_pool3d(y, 2, padding=1)), 2), 3)
    check(lambda _, y: R.nn.conv1d_transpose(y, const(8, 4, 2), strides=3), 1)
    check(lambda _, y: R.nn.conv3d_transpose(y, const(8, 2, 2, 3, 2), strides=[2, 1, 3]), 3)
    check(lambda emit, y: R.nn.conv3d(emit(R.nn.avg_pool3d(y, 2)), const(4, 8, 2, 2, 2)), 3)
    check(lambda _, y: R.image.resize3d(y, (3, 9, 5), method="linear"), 3)


UNARY = sorted(
    name.removeprefix("relax.")
    for name in PROPAGATED - BROADCASTING - CASES.keys() - {"relax.image.resize3d"}
    if not name.endswith(("1d", "3d", "1d_transpose", "3d_transpose"))
)
LOGICAL = ("isfinite", "isinf", "isnan")


def _unary(name: str, emit: Any, y: Any) -> Any:
    if name == "astype":
        return R.astype(y, "int32")
    if name == "bitwise_not":
        return R.bitwise_not(emit(R.astype(y, "int32")))
    if name == "logical_not":
        return R.logical_not(emit(R.isnan(y)))
    operator = getattr(R.nn, name[3:]) if name.startswith("nn.") else getattr(R, name)
    return operator(emit(R.add(y, relax.const(1.5))) if name == "acosh" else y)


@pytest.mark.parametrize("name", UNARY)
def test_element_wise_operators_carry_layouts(name: str) -> None:
    _, made = converted(lambda emit, y: _unary(name, emit, y))
    assert len(transposed(made)) == 2


@pytest.mark.parametrize("name", sorted(BROADCASTING - {"relax.where"}))
def test_operators_that_broadcast_carry_layouts(name: str) -> None:
    operator = getattr(R, name.removeprefix("relax."))
    _, made = converted(lambda emit, y: operator(y, emit(R.tanh(y))))
    assert len(transposed(made)) == 2


def _border(*widths: int, **options: Any) -> Body:
    return lambda _, y: R.nn.pad(y, [0, 0, 0, 0, *widths], **options)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("widths", [(1, 2), (1, 2, 0, 3), (-1, 1, 2, -2), (1, 0, 0, 0, 2, 1)])
def test_borders_around_images_carry_layouts(widths: tuple[int, ...], mode: str) -> None:
    """They keep their mode and their value, and are around the same axes."""
    _, made = converted(_border(*widths, pad_mode=mode, pad_value=2.5), len(widths) // 2)
    assert len(transposed(made)) == 2 and "max_pool" not in made.script()
    (pad,) = [b.value for b in made["main"].body.blocks[0].bindings if is_call_of(b.value, "relax.nn.pad")]
    assert list(pad.attrs.pad_width) == [0, 0, *widths, 0, 0]
    assert (pad.attrs.pad_mode, pad.attrs.pad_value) == (mode, 2.5)


def test_borders_of_one_axis_and_of_three_keep_results() -> None:
    check(_border(1, 2, pad_value=2.5), 1)
    check(_border(1, 0, 0, 0, 2, 1, pad_value=2.5), 3)
    check(_border(-1, 1, 0, 0, 2, -1, pad_value=2.5), 3)


def test_several_borders_keep_their_own_widths() -> None:
    def body(emit: Any, y: Any) -> Any:
        y = emit(R.nn.pad(y, [0, 0, 0, 0, 0, 1, 0, 1], pad_value=-float("inf")))
        y = emit(R.nn.max_pool2d(y, [2, 2]))
        return R.nn.conv2d(emit(R.nn.pad(y, [0, 0, 0, 0, 2, 0, 1, 1])), const(4, 8, 2, 2))

    check(body)
    _, made = converted(body)
    assert len(transposed(made)) == 2


def test_borders_of_images_of_any_size_carry_layouts() -> None:
    height = tvm.tirx.Var("h", "int64")

    def chain(emit: Any, x: Any) -> list[Any]:
        padded = emit(R.nn.pad(emit(R.nn.conv2d(x, const(8, 3, 3, 3))), [0, 0, 0, 0, 0, 1, 2, 0]))
        return [R.nn.conv2d(padded, const(4, 8, 2, 2))]

    mod = build(chain, ((2, 3, height, 7), "float32"))
    assert len(transposed(ConvolutionLayouts(lambda _call, _read_last: True)(mod))) == 2


def is_call_of(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == name


def transposed(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []

    def visit(e: Any) -> None:
        if is_call_of(e, "relax.permute_dims") and not isinstance(e.args[0], tvm.ir.GenericConst):
            found.append(e)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_what_has_no_rule_keeps_the_chains_around_it() -> None:
    """A transposed convolution of a weight that is no constant is TVM's.

    The operators around it have channels innermost.
    """

    def body(emit: Any, y: Any) -> Any:
        weight = emit(R.multiply(const(8, 4, 3, 3), relax.const(2.0)))
        wide = emit(R.nn.conv2d_transpose(y, weight, strides=[2, 2]))
        return R.nn.conv2d(wide, const(4, 4, 3, 3))

    _, made = converted(body)
    text = made.script()
    assert text.count('data_layout="NHWC"') == 2 and text.count('data_layout="NCHW"') == 1
    assert len(transposed(made)) == 4


def repeated(convert: Callable[[tvm.IRModule], tvm.IRModule]) -> np.ndarray:
    """Return a convolution's elements, each twice in a row, after a change of layouts."""
    weight = relax.const(np.arange(24, dtype="float32").reshape(2, 3, 2, 2))
    mod = build(lambda emit, x: R.repeat(emit(R.nn.conv2d(x, weight)), 2), ((1, 3, 3, 4), "float32"))
    x = np.arange(36, dtype="float32").reshape(1, 3, 3, 4)
    return faults.on_cpu(convert(mod), [x])[0]


def to_nhwc(mod: tvm.IRModule) -> tvm.IRModule:
    return relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})(mod)


def is_right(convert: Callable[[tvm.IRModule], tvm.IRModule]) -> bool:
    return np.array_equal(repeated(convert), repeated(lambda mod: mod))


def test_fault() -> None:
    faults.needed(not is_right(to_nhwc), "legalize/convert_layout.py")


def test_repair() -> None:
    assert is_right(lambda mod: converted_where_propagated(mod, to_nhwc))
    assert not is_right(to_nhwc)
