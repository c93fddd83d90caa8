# SPDX-License-Identifier: Apache-2.0
"""The float64 reference: against closed forms, against stock TVM, and what it rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from stitch_testing.reference.operators import erf
from stitch_testing.reference.relax import evaluate, flatten, mismatches

Emit = Callable[[relax.Expr], relax.Var]


def module(params: list[relax.Var], body: Callable[..., list[relax.Expr]]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in body(builder.emit, *params)]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def tensor(name: str, shape: list[object], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def run_stock(mod: tvm.IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    result = vm["main"](*map(tvm.runtime.tensor, inputs))
    return [leaf.numpy() for leaf in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def test_erf_is_accurate_to_float64() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [1e-300, -1e-8, 0.0]])
    exact = np.array([math.erf(value) for value in x])
    assert np.all(np.abs(erf(x) - exact) <= 4e-16 * np.maximum(np.abs(exact), 1e-290))
    assert np.isnan(erf(np.array([np.nan]))).all()


VECTOR = relax.const(np.linspace(0.5, 1.5, 8).astype("float32"))
TARGETS = relax.const(np.array([3, 2, 7, 0, 2, 5], "int64"))

#: Operators whose NumPy meaning is worth holding against TVM's own, on x <6, 8> float32.
AGAINST_STOCK: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "softmax": lambda x: R.nn.softmax(x, axis=0),
    "log_softmax": lambda x: R.nn.log_softmax(x),
    "layer_norm": lambda x: R.nn.layer_norm(x, VECTOR, VECTOR, axes=[-1]),
    "rms_norm": lambda x: R.nn.rms_norm(x, VECTOR, axes=[-1]),
    "group_norm": lambda x: R.nn.group_norm(R.reshape(x, (3, 8, 2)), VECTOR, VECTOR, 4, 1, [2]),
    "batch_norm": lambda x: R.nn.batch_norm(x, *[VECTOR] * 4, axis=1, training=False)[0],
    "batch_norm_training": lambda x: R.nn.batch_norm(R.reshape(x, (2, 8, 3)), *[VECTOR] * 4, axis=1)[0],
    "running_variance": lambda x: R.nn.batch_norm(x, *[VECTOR] * 4, axis=1, momentum=0.3)[2],
    "nll_loss": lambda x: R.nn.nll_loss(x, TARGETS, VECTOR, "mean", ignore_index=2),
    "nll_loss_sum": lambda x: R.nn.nll_loss(R.reshape(x, (2, 8, 3)), R.reshape(TARGETS, (2, 3)), None, "sum"),
    "nll_loss_each": lambda x: R.nn.nll_loss(x, TARGETS, None, "none", ignore_index=7),
    "instance_norm": lambda x: R.nn.instance_norm(R.reshape(x, (1, 8, 6)), VECTOR, VECTOR, 1, [2]),
    "gelu": lambda x: R.nn.gelu(x),
    "gelu_tanh": lambda x: R.nn.gelu_tanh(x),
    "silu": lambda x: R.nn.silu(x),
    "relu": lambda x: R.nn.relu(x),
    "leakyrelu": lambda x: R.nn.leakyrelu(x, 0.1),
    "softplus": lambda x: R.nn.softplus(x),
    "variance": lambda x: R.variance(x, [1], True),
    "std": lambda x: R.std(x, [0]),
    "prod": lambda x: R.prod(x, axis=-1),
    "cumsum": lambda x: R.cumsum(x, axis=1),
    "argmax": lambda x: R.argmax(x, axis=1),
    "matmul": lambda x: R.matmul(x, R.permute_dims(x)),
    "slice": lambda x: R.strided_slice(x, [0, 1], [1, 7], [6, 0], [2, -3]),
    "split": lambda x: R.split(x, 3, axis=1)[2],
    "split_indices": lambda x: R.split(x, [3, 5], axis=1)[1],
    "pad": lambda x: R.nn.pad(x, [1, 2, 0, 3], pad_value=1.5),
    "tile": lambda x: R.tile(x, (2, 1, 3)),
    "repeat": lambda x: R.repeat(x, 2, axis=1),
    "flip": lambda x: R.flip(x, 1),
    "tril": lambda x: R.tril(x, 1),
    "round": lambda x: R.round(R.multiply(x, relax.const(2.0))),
    "collapse": lambda x: R.collapse_sum_to(x, (1, 8)),
    "one_hot": lambda x: R.one_hot(R.argmax(x, axis=1), relax.prim_value(3), relax.prim_value(1), 8),
    "take": lambda x: R.take(x, R.argmax(x, axis=1), axis=1),
    "take_clipped": lambda x: R.take(x, relax.const([-3, 1, 99], "int64"), axis=1, mode="clip"),
    "take_wrapped": lambda x: R.take(x, relax.const([-3, 1, 15], "int64"), axis=1, mode="wrap"),
    "gather_nd": lambda x: R.gather_nd(x, relax.const([[1, 7], [5, 0], [0, 3]], "int64")),
    "gather_nd_in_batches": lambda x: R.gather_nd(
        x, R.astype(R.reshape(TARGETS, (6, 1)), "int64"), batch_dims=1
    ),
    "cross_entropy": lambda x: R.nn.cross_entropy_with_logits(x, R.multiply(x, VECTOR)),
    "cross_entropy_of_one": lambda x: R.nn.cross_entropy_with_logits(VECTOR, VECTOR),
    "integer_divide": lambda x: R.divide(
        R.astype(R.multiply(x, relax.const(9.0)), "int32"), relax.const(4, "int32")
    ),
    "floor_divide": lambda x: R.floor_divide(
        R.astype(R.multiply(x, relax.const(9.0)), "int32"), relax.const(4, "int32")
    ),
    "wrap_around": lambda x: R.multiply(
        R.astype(R.multiply(x, relax.const(9e4)), "int32"), relax.const(77777, "int32")
    ),
    "int8_cast": lambda x: R.astype(R.astype(R.multiply(x, relax.const(300.0)), "int32"), "int8"),
    "bool_cast": lambda x: R.astype(R.astype(R.greater(x, relax.const(0.0)), "int32"), "bool"),
}


@pytest.mark.parametrize("name", AGAINST_STOCK)
def test_agrees_with_stock(name: str) -> None:
    mod = module([tensor("x", [6, 8])], lambda emit, x: [emit(AGAINST_STOCK[name](x))])
    x = np.random.default_rng(3).standard_normal((6, 8)).astype("float32")
    assert mismatches(run_stock(mod, [x]), evaluate(mod, [x]), {"float32": (1e-5, 1e-5)}) == []


PRODUCTS: dict[str, tuple[Callable[..., relax.Expr], tuple[int, ...], tuple[int, ...]]] = {
    "matmul": (R.matmul, (3, 40), (40, 5)),
    "conv2d": (R.nn.conv2d, (2, 6, 5, 5), (4, 6, 3, 3)),
}


@pytest.mark.parametrize("out", ["int8", "int32", "float32"])
@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8")])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_integers_are_added_up_in_the_type_of_the_result(
    name: str, left: str, right: str, out: str
) -> None:
    product, *shapes = PRODUCTS[name]
    mod = module(
        [tensor("x", list(shapes[0]), left), tensor("y", list(shapes[1]), right)],
        lambda emit, x, y: [emit(product(x, y, out_dtype=out))],
    )
    rng = np.random.default_rng(0)
    inputs = [rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t) for s, t in zip(shapes, (left, right))]
    (found,) = evaluate(mod, inputs)
    assert found.dtype == (out if out != "float32" else "float64")
    assert mismatches(run_stock(mod, inputs), [found], {"float32": (1e-6, 0)}) == []


def test_only_inputs_constants_and_casts_round() -> None:
    def body(emit: Emit, x: relax.Expr) -> list[relax.Expr]:
        sum_ = emit(R.add(x, relax.const(2048.0, "float16")))
        return [
            sum_,
            emit(R.astype(emit(R.astype(x, "float32")), "bfloat16")),
            emit(R.astype(sum_, "float16")),
        ]

    mod = module([tensor("x", [1], "float16")], body)
    kept, bfloat, rounded = evaluate(mod, [np.array([1.001], "float16")])
    x = float(np.float16(1.001))
    assert kept == 2048 + x and kept.dtype == np.float64
    assert bfloat == float(np.array(x).astype(ml_dtypes.bfloat16))
    assert rounded == float(np.float16(2048 + x))


def test_symbolic_extents_bind_from_inputs() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def body(emit: Emit, x: relax.Expr) -> list[relax.Expr]:
        return [emit(R.reshape(emit(R.broadcast_to(x, (3, n, m))), (n * 3 * m,)))]

    mod = module([tensor("x", [n, m])], body)
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.array_equal(evaluate(mod, [x])[0], np.tile(x.reshape(-1), 3))


def test_inputs_of_the_wrong_shape_are_refused() -> None:
    n = tirx.Var("n", "int64")
    mod = module([tensor("x", [n, 4]), tensor("y", [n, 4])], lambda emit, x, y: [emit(R.add(x, y))])
    with pytest.raises(ValueError, match="does not match"):
        evaluate(mod, [np.zeros((2, 4), "float32"), np.zeros((3, 4), "float32")])
    with pytest.raises(ValueError, match="takes 2 arguments"):
        evaluate(mod, [np.zeros((2, 4), "float32")])


def test_private_functions_and_match_cast() -> None:
    builder = relax.BlockBuilder()
    x = tensor("x", [2, 3])
    with builder.function("twice", [x]):
        builder.emit_func_output(builder.emit(R.add(x, x)))
    twice = builder.get().get_global_var("twice")
    y = tensor("y", [2, 3])
    n = tirx.Var("n", "int64")
    with builder.function("main", [y]):
        called = builder.emit(relax.Call(twice, [y]))
        cast = builder.match_cast(called, relax.TensorType([n, 3], "float32"))
        builder.emit_func_output(builder.emit(R.reshape(cast, (n * 3,))))
    value = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.array_equal(evaluate(builder.get(), [value])[0], 2.0 * value.reshape(-1))


def test_unknown_operator_is_named() -> None:
    mod = module([tensor("x", [1, 1, 4, 4])], lambda emit, x: [emit(R.nn.max_pool2d(x, (2, 2)))])
    with pytest.raises(NotImplementedError, match=r"relax\.nn\.max_pool2d"):
        evaluate(mod, [np.zeros((1, 1, 4, 4), "float32")])


def test_mismatches_report_nan_shape_and_position() -> None:
    good = np.zeros((2, 3), "float32")
    tolerance = {"float32": (0.0, 1e-3)}
    assert mismatches([good], [good], tolerance) == []
    bad = good.copy()
    bad[1, 2] = np.nan
    bad[0, 1] = 0.5
    (line,) = mismatches([bad], [good], tolerance)
    assert "2 wrong" in line and "(1, 2)" in line
    assert "shape" in mismatches([good], [good.T], tolerance)[0]
    assert "1 outputs" in mismatches([good], [good, good], tolerance)[0]
    assert mismatches([np.array([3], "int32")], [np.array([4], "int32")], tolerance)


def test_flatten_keeps_order() -> None:
    assert flatten((1, (2, (3,)), 4)) == [1, 2, 3, 4]
