# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of Relay functions against float64 NumPy: every kind of tail, dtypes, and what LLVM gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

from tests.relay.codegen.kernels import LIBM, TOLERANCE, VECTOR_STORE, Kernel, check, draw
from tvm_stitch.plan.cpu.tile import Lanes, Split

F32 = "float32"


def softmax(axis: int) -> Callable[[Any], Any]:
    return lambda x: relay.nn.softmax(x, axis)


def np_softmax(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    def reference(x: np.ndarray) -> np.ndarray:
        raised = np.exp(x - x.max(axis, keepdims=True))
        return raised / raised.sum(axis, keepdims=True)

    return reference


def np_erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return erf(x)


def gelu(x: Any) -> Any:
    half, root = relay.const(0.5), relay.const(2.0**-0.5)
    return x * (relay.erf(x * root) * half + half)


def np_gelu(x: np.ndarray) -> np.ndarray:
    return x * (np_erf(x * 2.0**-0.5) * 0.5 + 0.5)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = relay.mean(x, -1, keepdims=True)
    centred = x - mean
    variance = relay.mean(centred * centred, -1, keepdims=True)
    return centred * relay.rsqrt(variance + relay.const(1e-5)) * scale + shift


def np_layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1), (1, 7), (3, 1), (5, 8), (4, 15), (64, 16), (7, 31), (3, 32), (3, 33), (2, 63), (2, 97), (1, 1009),
        (130, 1009), (1, 200003), (2, 100000), (300, 5), (300, 13), (1000, 2),
    ],
    ids=str,
)  # fmt: skip
def test_softmax_of_any_length(shape: tuple[int, int]) -> None:
    check([shape], F32, softmax(-1), np_softmax(-1))


@pytest.mark.parametrize(
    "shape",
    [(2, 5, 7, 7), (2, 64, 8, 8), (3, 10, 4), (4, 33, 33), (1, 7, 64), (2, 21, 100), (5, 16, 3)],
    ids=str,
)
def test_softmax_over_channels(shape: tuple[int, ...]) -> None:
    check([shape], F32, softmax(1), np_softmax(1))


def test_vectors_are_no_memory_of_the_runtime() -> None:
    """Values that a kernel holds for its lanes are on the stack, where LLVM makes registers of them."""
    source = check([(64, 100)], F32, softmax(-1), np_softmax(-1)).source
    assert "fmul <" in source and not re.search(r"@(__)?TVMBackendAllocWorkspace,", source)


@pytest.mark.parametrize("shape", [(3, 768), (17, 77), (1, 5), (2, 3, 130)], ids=str)
def test_add_layer_norm_gelu(shape: tuple[int, ...]) -> None:
    check(
        [shape, shape, shape[-1:], shape[-1:]],
        F32,
        lambda x, y, s, b: gelu(layer_norm(x + y, s, b)),
        lambda x, y, s, b: np_gelu(np_layer_norm(x + y, s, b)),
    )


def test_several_outputs() -> None:
    check(
        [(33, 45), (45,)],
        F32,
        lambda x, y: [x + y, relay.sum(x + y, -1), relay.tanh(relay.max(x + y, -1, keepdims=True)) * x],
        lambda x, y: [x + y, (x + y).sum(-1), np.tanh((x + y).max(-1, keepdims=True)) * x],
    )


@pytest.mark.parametrize(
    "shape", [(1, 5), (17, 19), (128, 1000), (2048, 64), (2048, 67), (5, 3), (50000, 3)], ids=str
)
def test_column_and_full_reductions(shape: tuple[int, int]) -> None:
    # Sums of numbers around 0 cancel: the error is of the size of their roundings.
    sums = {F32: (3e-5, 1e-3)}
    check([shape], F32, lambda x: relay.sum(x, 0), lambda x: x.sum(0), sums)
    check([shape], F32, relay.sum, np.sum, sums)
    check([shape], F32, relay.max, np.max, {F32: (0.0, 0.0)})
    check(
        [shape],
        F32,
        lambda x: relay.sum(relay.exp(x), 0) / relay.max(relay.exp(x), 0),
        lambda x: np.exp(x).sum(0) / np.exp(x).max(0),
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_reductions_in_every_dtype(dtype: str, axis: int | None) -> None:
    tolerance = {**TOLERANCE, "bfloat16": (2e-2, 2e-1), "float16": (4e-3, 4e-2)}

    def np_sum(x: np.ndarray) -> np.ndarray:
        return np.asarray(x.sum(axis)).astype(x.dtype)

    for shape in [(33, 45), (5, 3)]:
        check([shape], dtype, lambda x: relay.sum(x, axis), np_sum, tolerance)
        check([shape], dtype, lambda x: relay.min(x, axis), lambda x: x.min(axis), tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype: str) -> None:
    check([(9, 77)], dtype, softmax(-1), np_softmax(-1))
    check([(2, 9, 77)], dtype, softmax(1), np_softmax(1))
    check([(9, 77)], dtype, lambda x: x * relay.erf(x), lambda x: x * np_erf(x))


def test_rounding_to_bfloat16_is_as_in_ml_dtypes() -> None:
    # Every upper half of a float32 (NaN and infinities included) with each of some lower halves around the ties.
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    values = (upper | lower).view(np.float32).reshape(-1)
    x = relay.var("x", shape=values.shape)
    kernel = Kernel(relay.Function([x], relay.cast(x, "bfloat16")))
    np.testing.assert_array_equal(kernel(values)[0].astype(F32), values.astype("bfloat16").astype(F32))
    back = relay.var("x", shape=values.shape, dtype="bfloat16")
    widen = Kernel(relay.Function([back], relay.cast(back, F32)))
    halves = values.astype("bfloat16")
    np.testing.assert_array_equal(widen(halves)[0], halves.astype(F32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_vector_code(dtype: str) -> None:
    target = "llvm -mcpu=core-avx2 -opt-level=0"
    source = check([(9, 77)], dtype, softmax(-1), np_softmax(-1), target=target).source
    assert re.search(r"store <(8|16|32) x (half|i16)>", source) and not LIBM.search(source)


def test_near_constants_stay_apart() -> None:
    # TVM's simplifier takes floats that differ by less than 1e-9 for equal.
    small, smaller = relay.const(3e-10), relay.const(1e-12)
    kernel = check(
        [(9, 77)],
        F32,
        lambda x: relay.where(relay.greater(x, relay.const(0.0)), small, smaller),
        lambda x: np.where(x > 0, 3e-10, 1e-12),
        {F32: (1e-6, 0.0)},
    )
    assert VECTOR_STORE.search(kernel.source)


def test_booleans_are_computed_and_kept() -> None:
    check(
        [(9, 77), (9, 77)],
        "bool",
        lambda x, y: [relay.logical_and(x, relay.logical_not(y)), relay.logical_or(x, y)],
        lambda x, y: [x & ~y, x | y],
    )
    check([(9, 77), (9, 77), (9, 1)], ["bool", F32, F32], relay.where, np.where)
    check(
        [(9, 77), (9, 1)],
        F32,
        lambda x, y: [relay.less(x, y), relay.cast(relay.greater(x, y), "int32")],
        lambda x, y: [x < y, x > y],
    )
    check(
        [(9, 77)],
        F32,
        lambda x: [relay.isnan(x), relay.isfinite(x), relay.isinf(x)],
        lambda x: [np.isnan(x), np.isfinite(x), np.isinf(x)],
    )


def test_integers_and_casts() -> None:
    check([(9, 77), (77,)], "int32", lambda x, y: x * y + x, lambda x, y: x * y + x)
    three = 3
    check(
        [(9, 77)],
        "int32",
        lambda x: [relay.floor_divide(x, relay.const(three)), relay.floor_mod(x, relay.const(three))],
        lambda x: [x // three, x % three],
    )
    check(
        [(9, 77)],
        F32,
        lambda x: [relay.cast(x, d) for d in ("int8", "float16", "bfloat16", "bool", "int64")],
        lambda x: [x.astype(d) for d in ("int8", "float64", "float64", "bool", "int64")],
    )
    check(
        [(9, 77)],
        F32,
        lambda x: [op(x) for op in (relay.round, relay.floor, relay.ceil, relay.trunc, relay.sign)],
        lambda x: [op(x) for op in (np.round, np.floor, np.ceil, np.trunc, np.sign)],
    )


def one() -> Any:
    return relay.const(1.0)


MOVES: dict[str, tuple[list[tuple[int, ...]], Callable, Callable]] = {
    "transpose": ([(9, 77)], lambda x: relay.exp(relay.transpose(x)), lambda x: np.exp(x.T)),
    "large transpose": ([(200, 130)], lambda x: relay.transpose(x) + one(), lambda x: x.T + 1),
    "heads": (
        [(2, 8, 12, 16)],
        lambda x: relay.transpose(x, [0, 2, 1, 3]) + one(),
        lambda x: x.transpose(0, 2, 1, 3) + 1,
    ),
    "reshape": (
        [(6, 35)], lambda x: relay.exp(relay.reshape(x, (10, 21))), lambda x: np.exp(x.reshape(10, 21))
    ),
    "concat": (
        [(9, 30), (9, 47)],
        lambda x, y: relay.exp(relay.concatenate([relay.tanh(x), y], 1)),
        lambda x, y: np.exp(np.concatenate([np.tanh(x), y], 1)),
    ),
    "concat outer": (
        [(9, 30), (4, 30)],
        lambda x, y: relay.exp(relay.concatenate([relay.tanh(x), y], 0)),
        lambda x, y: np.exp(np.concatenate([np.tanh(x), y], 0)),
    ),
    "concat softmax": (
        [(9, 30), (9, 47)],
        lambda x, y: relay.nn.softmax(relay.concatenate([relay.tanh(x), y], 1)),
        lambda x, y: np_softmax(-1)(np.concatenate([np.tanh(x), y], 1)),
    ),
    "concat short": (
        [(3, 5), (3, 5), (3, 5)],
        lambda x, y, z: relay.concatenate([x, y, z], 1) + one(),
        lambda x, y, z: np.concatenate([x, y, z], 1) + 1,
    ),
    # Math below conditions that differ between rows, and between the lanes of a vector.
    "concat sines": (
        [(9, 11), (9, 11)],
        lambda x, y: relay.concatenate([relay.sin(x), relay.power(relay.exp(y), x)], 0),
        lambda x, y: np.concatenate([np.sin(x), np.power(np.exp(y), x)], 0),
    ),
    "many parts": (
        [(7, 3)] * 4,
        lambda *xs: relay.concatenate([relay.sin(x) for x in xs], 1) + one(),
        lambda *xs: np.concatenate([np.sin(x) for x in xs], 1) + 1,
    ),
    "pad": (
        [(9, 30)],
        lambda x: relay.exp(relay.nn.pad(x, ((1, 2), (3, 4)))),
        lambda x: np.exp(np.pad(x, ((1, 2), (3, 4)))),
    ),
    "pad image": (
        [(2, 3, 40, 41)],
        lambda x: relay.nn.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))) + one(),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))) + 1,
    ),
    "halves": (
        [(9, 86)],
        lambda x: relay.strided_slice(x, [0, 0], [9, 43]) * relay.exp(relay.strided_slice(x, [0, 43], [9, 86])),
        lambda x: x[:, :43] * np.exp(x[:, 43:]),
    ),
    "every second": (
        [(9, 86)],
        lambda x: relay.exp(relay.strided_slice(x, [0, 0], [9, 86], [1, 2])),
        lambda x: np.exp(x[:, ::2]),
    ),
    "broadcasts": (
        [(4, 1, 9), (1, 5, 9), (4, 5, 1)],
        lambda x, y, z: x * y + relay.exp(z),
        lambda x, y, z: x * y + np.exp(z),
    ),
    "channels": (
        [(3, 5, 7, 7), (5, 1, 1)],
        lambda x, y: relay.nn.relu(x + y),
        lambda x, y: np.maximum(x + y, 0),
    ),
    "narrow": ([(1000, 3), (3,)], lambda x, y: relay.nn.relu(x + y), lambda x, y: np.maximum(x + y, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_data_movement(name: str) -> None:
    shapes, body, reference = MOVES[name]
    check(shapes, F32, body, reference)


def test_gather() -> None:
    check(
        [(50, 33), (7,)],
        [F32, "int32"],
        lambda x, i: relay.nn.softmax(relay.take(x, relay.abs(i), 0, mode="clip")),
        lambda x, i: np_softmax(-1)(x[np.abs(i)]),
    )


# The code that LLVM gets.

INNER = {
    "softmax add layer norm gelu": (
        [(16, 256), (16, 256), (256,), (256,)],
        lambda x, y, s, b: gelu(layer_norm(relay.nn.softmax(x) + y, s, b)),
        lambda x, y, s, b: np_gelu(np_layer_norm(np_softmax(-1)(x) + y, s, b)),
    ),
    "swish": (
        [(16, 256), (16, 256)],
        lambda x, y: x * relay.sigmoid(x) * y,
        lambda x, y: x / (1 + np.exp(-x)) * y,
    ),
    "log softmax": (
        [(16, 250)], relay.nn.log_softmax, lambda x: np.log(np_softmax(-1)(x))
    ),
    "lanes over rows": ([(2, 6, 64)], softmax(1), np_softmax(1)),
    "concat": MOVES["concat"],
}  # fmt: skip


@pytest.mark.parametrize("name", INNER)
def test_inner_loops_are_vector_code(name: str) -> None:
    shapes, body, reference = INNER[name]
    # Without LLVM's optimiser: it could vectorize what TVM left scalar.
    source = check(shapes, F32, body, reference, target="llvm -opt-level=0").source
    assert VECTOR_STORE.search(source)
    assert not LIBM.search(source)


def test_lanes_over_rows() -> None:
    kernel = check([(2, 6, 64)], F32, softmax(1), np_softmax(1))
    assert kernel.plan.stage.mapping.lanes is Lanes.ROWS


def test_large_rows_share_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    kernel = check(
        [(300_001,)], F32, lambda x: [relay.sum(x), relay.exp(relay.max(x))],
        lambda x: [x.sum(), np.exp(x.max())], {F32: (1e-4, 1e-1)},
    )  # fmt: skip
    assert kernel.plan.stage.mapping.divide is Split.COLUMNS and kernel.plan.stage.mapping.parallel


def test_small_tensors_run_serially() -> None:
    assert check([(4, 64)], F32, softmax(-1), np_softmax(-1)).plan.stage.mapping.parallel is False


def test_functions_are_marked_as_scheduled() -> None:
    kernel = check([(4, 64)], F32, softmax(-1), np_softmax(-1))
    assert bool(kernel.func.attrs["tir.is_scheduled"]) and bool(kernel.func.attrs["tir.noalias"])
    assert isinstance(kernel.func, tvm.tir.PrimFunc)


def test_masked_rows_and_special_values() -> None:
    x = draw((9, 77), F32)
    x[1, 5:] = -np.inf
    x[2, 3], x[3, 70], x[4, :] = np.inf, np.nan, 80.0
    a = relay.var("a", shape=x.shape)
    (found,) = Kernel(relay.Function([a], relay.nn.softmax(a)))(x)
    usual = [0, 1, 4, 5, 6, 7, 8]
    np.testing.assert_allclose(
        found[usual], np_softmax(-1)(x[usual].astype("float64")), rtol=3e-5, atol=1e-30
    )
    assert (found[1, 5:] == 0).all() and np.isnan(found[2, 3]) and np.isnan(found[3, 70])
    wide = x.astype("float64")
    with np.errstate(all="ignore"):
        for function, reference in ((relay.exp, np.exp), (relay.tanh, np.tanh), (relay.sqrt, np.sqrt)):
            got = Kernel(relay.Function([a], function(a)))(x)[0]
            np.testing.assert_allclose(got, reference(wide).astype(F32), rtol=3e-6)
