# SPDX-License-Identifier: Apache-2.0
"""The oracle against PyTorch in float64 and against values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fuzzing.bounded import FLOATS, Bounded, Rules, exact
from fuzzing.case import Case, Inapplicable, Input, Step
from fuzzing.data import inputs_of
from fuzzing.judge import violations
from fuzzing.oracle import evaluate, evaluate_step

torch = pytest.importorskip("torch")
F = torch.nn.functional
RULES = Rules()


def run(op: str, *args: Any, dtype: str = "float32", rules: Rules = RULES, **attrs: Any) -> Bounded:
    """Evaluate one operator of exact operands."""
    values = [a if isinstance(a, Bounded) else exact(np.asarray(a), dtype) for a in args]
    found = evaluate_step(Step(op, (), attrs), values, {}, rules)
    return found  # type: ignore[no-any-return]


X = np.random.default_rng(0).normal(size=(2, 6, 5, 7)).astype("float32")
Y = np.random.default_rng(1).normal(size=(5, 7)).astype("float32")
W = np.random.default_rng(2).uniform(0.5, 1.5, 7).astype("float32")
C = [np.random.default_rng(3 + i).uniform(0.5, 1.5, 6).astype("float32") for i in range(4)]
K = np.random.default_rng(9).normal(size=(4, 3, 3, 3)).astype("float32")
B = np.random.default_rng(10).normal(size=(2, 1, 6, 5)).astype("float32")


def t(x: np.ndarray) -> Any:
    return torch.tensor(x, dtype=torch.float64)


T3 = [t(part).transpose(1, 2) for part in (X, X[:, 1:], X[:, :-1])]


AGAINST_TORCH: dict[str, tuple[Bounded, Callable[[], Any]]] = {
    "gelu": (run("gelu", X), lambda: F.gelu(t(X))),
    "pixel_shuffle": (
        run("pixel_shuffle", X.reshape(3, 4, 5, 7), factor=2),
        lambda: F.pixel_shuffle(t(X).reshape(3, 4, 5, 7), 2),
    ),
    "gelu_tanh": (run("gelu_tanh", X), lambda: F.gelu(t(X), approximate="tanh")),
    "silu": (run("silu", X), lambda: F.silu(t(X))),
    "selu": (run("selu", X), lambda: F.selu(t(X))),
    "sigmoid": (run("sigmoid", X), lambda: torch.sigmoid(t(X))),
    "erf": (run("erf", X), lambda: torch.erf(t(X))),
    "round": (run("round", 2 * X), lambda: torch.round(t(2 * X))),
    "atan2": (run("atan2", X, Y), lambda: torch.atan2(t(X), t(Y))),
    "floor_mod": (run("floor_mod", X, W), lambda: torch.remainder(t(X), t(W))),
    "floor_divide": (run("floor_divide", X, W), lambda: torch.div(t(X), t(W), rounding_mode="floor")),
    "softmax": (run("softmax", X, axis=1), lambda: F.softmax(t(X), 1)),
    "log_softmax": (run("log_softmax", X, axis=-1), lambda: F.log_softmax(t(X), -1)),
    "variance": (
        run("variance", X, axis=[1, 3], keepdims=True),
        lambda: t(X).var((1, 3), correction=0, keepdim=True),
    ),
    "std": (run("std", X, axis=[2], keepdims=False), lambda: t(X).std(2, correction=0)),
    "prod": (run("prod", X, axis=[-1], keepdims=False), lambda: t(X).prod(-1)),
    "cumsum": (run("cumsum", X, axis=2, exclusive=False), lambda: t(X).cumsum(2)),
    "layer_norm": (
        run("layer_norm", X, W, W, axes=[-1], epsilon=1e-5),
        lambda: F.layer_norm(t(X), (7,), t(W), t(W)),
    ),
    "rms_norm": (
        run("rms_norm", X, W, axes=[-1], epsilon=1e-5),
        lambda: F.rms_norm(t(X), (7,), t(W), eps=1e-5),
    ),
    "group_norm": (
        run("group_norm", X, C[0], C[1], groups=3, axes=[2, 3], epsilon=1e-5),
        lambda: F.group_norm(t(X), 3, t(C[0]), t(C[1])),
    ),
    "instance_norm": (
        run("instance_norm", X, C[0], C[1], axes=[2, 3], epsilon=1e-5),
        lambda: F.instance_norm(t(X), weight=t(C[0]), bias=t(C[1])),
    ),
    "batch_norm": (
        run("batch_norm", X, *C, epsilon=1e-5),
        lambda: F.batch_norm(t(X), t(C[2]), t(C[3]), t(C[0]), t(C[1])),
    ),
    "matmul": (run("matmul", X, X.swapaxes(2, 3)), lambda: t(X) @ t(X).transpose(2, 3)),
    "conv2d": (
        run("conv2d", X, K, strides=[2, 1], padding=1, groups=2),
        lambda: F.conv2d(t(X), t(K), stride=(2, 1), padding=1, groups=2),
    ),
    "conv_transpose": (
        run(
            "conv_transpose",
            X,
            K.reshape(6, 2, 3, 3),
            strides=[2, 3],
            padding=[1, 0],
            output_padding=[1, 2],
            dilation=[1, 2],
            groups=2,
        ),
        lambda: F.conv_transpose2d(t(X), t(K.reshape(6, 2, 3, 3)), None, (2, 3), (1, 0), (1, 2), 2, (1, 2)),
    ),
    "conv_transpose of one axis": (
        run(
            "conv_transpose",
            X.reshape(10, 6, 7),
            K.reshape(6, 6, 3),
            strides=[3],
            padding=[2],
            output_padding=[0],
            dilation=[1],
            groups=1,
        ),
        lambda: F.conv_transpose1d(t(X.reshape(10, 6, 7)), t(K.reshape(6, 6, 3)), None, 3, 2),
    ),
    "attention": (
        run("attention", X, X[:, 1:], X[:, :-1], B, scale=0.3, causal=None),
        lambda: F.scaled_dot_product_attention(*T3, attn_mask=t(B), scale=0.3).transpose(1, 2),
    ),
    "causal attention": (
        run("attention", X, X, X, scale=None, causal="TopLeft"),
        lambda: F.scaled_dot_product_attention(*[t(X).transpose(1, 2)] * 3, is_causal=True).transpose(1, 2),
    ),
    "max_pool2d": (
        run("max_pool2d", X, window=[3, 2], strides=[2, 1], padding=1),
        lambda: F.max_pool2d(t(X), (3, 2), (2, 1), 1),
    ),
    "avg_pool2d": (
        run("avg_pool2d", X, window=[3, 2], strides=[2, 1], padding=1, count_all=False),
        lambda: F.avg_pool2d(t(X), (3, 2), (2, 1), 1, count_include_pad=False),
    ),
    "argmax": (run("argmax", X, axis=1, keepdims=True), lambda: t(X).argmax(1, keepdim=True)),
    "one_hot": (
        evaluate_step(
            Step("one_hot", (), {"axis": -1, "depth": 3, "values": [1.0, 0.0], "dtype": "float32"}),
            [exact(np.array([2, 0]), "int64")],
            {},
            RULES,
        ),
        lambda: F.one_hot(torch.tensor([2, 0]), 3),
    ),
}


@pytest.mark.parametrize("name", AGAINST_TORCH)
def test_values_are_pytorchs_and_bounds_are_tight(name: str) -> None:
    value, reference = AGAINST_TORCH[name]
    expected = reference().numpy()
    assert value.shape == expected.shape
    known = ~value.unknown
    assert known.mean() > 0.9
    np.testing.assert_allclose(value.data[known], expected[known], rtol=1e-6, atol=1e-6)
    if value.is_float:
        scale = np.abs(expected).max()
        assert np.all(value.error[known] <= 1e-3 * scale), "a bound that excuses anything"


def test_float32_of_pytorch_is_within_the_bounds() -> None:
    x = torch.tensor(X)
    y = F.layer_norm(F.gelu(torch.exp(x) * torch.sin(x)), (7,), torch.tensor(W), torch.tensor(W)).softmax(-1)
    product = run("multiply", run("exp", X), run("sin", X))
    value = run("layer_norm", run("gelu", product), W, W, axes=[-1], epsilon=1e-5)
    value = run("softmax", value, axis=-1)
    assert not violations([y.numpy()], [value], RULES)
    wrong = y.numpy().copy()
    wrong[1, 2, 3, 4] = wrong[1, 2, 3, 5]
    assert violations([wrong], [value], RULES)


@pytest.mark.parametrize(
    "dtype, value", [("bfloat16", -9984.0), ("float16", -10000.0), ("float32", -10000.0)]
)
def test_scalars_are_of_their_operands_dtype(dtype: str, value: float) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    filled = evaluate_step(
        Step("masked_fill", (), {"value": -10000.0}),
        [exact(np.array([1.0, 2.0]), dtype), exact(np.array([True, False]), "bool")],
        {},
        RULES,
    )
    assert filled.data.tolist() == [value, 2.0] and not filled.error.any()
    added = run("add", np.array([0.0]), dtype="float32", scalar=0.1)
    assert added.data[0] == np.float32(0.1)


def test_small_integers_wrap() -> None:
    assert run("add", np.array([200, 5]), np.array([100, 5]), dtype="uint8").data.tolist() == [44, 10]
    assert run("multiply", np.array([-128]), np.array([-1]), dtype="int8").data.tolist() == [-128]
    assert run("negative", np.array([-128]), dtype="int8").data.tolist() == [-128]
    assert run("sum", np.array([100, 100]), dtype="int8", axis=None, keepdims=False).data == -56
    assert evaluate_step(
        Step("cast", (), {"dtype": "uint8"}), [exact(np.array([300, -1]), "int32")], {}, RULES
    ).data.tolist() == [44, 255]


def test_wide_signed_integers_that_overflow_are_not_judged() -> None:
    value = run("add", np.array([2**31 - 1, 1]), np.array([1, 1]), dtype="int32")
    assert value.unknown.tolist() == [True, False]


def test_nan_and_infinities() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    value = exact(x, "float32")
    assert run("not_equal", value, value).data.tolist() == [True, False, False, False]
    assert run("equal", value, value).data.tolist() == [False, True, True, True]
    difference = run("subtract", value, value)
    assert np.isnan(difference.data[:3]).all() and difference.data[3] == 0 and not difference.unknown.any()
    quotient = run("divide", value, value)
    assert np.isnan(quotient.data[:3]).all() and quotient.data[3] == 1
    assert run("maximum", x, np.zeros(4)).unknown.tolist() == [True, False, False, False]
    assert not run("maximum", x, np.zeros(4), rules=Rules(nan_max="propagate")).unknown.any()
    assert run("exp", np.array([100.0, -200.0, 1000.0])).data[[0, 2]].tolist() == [np.inf, np.inf]
    assert np.isnan(run("sum", x, axis=None, keepdims=False).data)
    assert run("less", x, np.zeros(4), rules=Rules(lenient=True)).unknown.tolist() == [
        True,
        False,
        False,
        False,
    ]
    row = run("softmax", np.array([[1.0, np.nan], [1.0, 2.0]]), axis=-1)
    assert np.isnan(row.data[0]).all() and not row.unknown.any()


def test_what_rounding_decides_is_not_judged() -> None:
    third = run("divide", np.array([1.0, 6.0]), np.array([3.0, 3.0]))
    assert run("multiply", third, np.array([3.0, 3.0])).error.min() > 0
    assert run("equal", third, np.array([1 / 3, 5.0])).unknown.tolist() == [True, False]
    assert evaluate_step(Step("cast", (), {"dtype": "int32"}), [third], {}, RULES).unknown.tolist() == [
        False,
        True,
    ]
    assert run("argmax", third, axis=0, keepdims=False).data == 1
    tie = run("sqrt", np.array([2.0, 2.0]))
    assert run("argmax", tie, axis=0, keepdims=False).unknown


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_an_operand_that_may_be_within_the_domain_makes_no_certain_nan(name: str) -> None:
    x = Bounded(np.array([1.5, 1.5, 0.5]), np.array([3.0, 0.25, 0.0]), "float32")
    found = run(name, x)
    assert np.isnan(found.data[:2]).all() and np.isfinite(found.error[1:]).all() and np.isinf(found.error[0])


def test_a_sum_whose_parts_overflow_is_settled_where_nothing_opposes() -> None:
    big = 3e38
    x = np.array([[big, big, -np.inf], [big, big, np.inf], [1, big, -np.inf], [-big, -big, np.inf]])
    for op in ("sum", "mean"):
        value = run(op, x, axis=[1], keepdims=False)
        assert value.unknown.tolist() == [True, False, False, True]
        assert value.data[1:3].tolist() == [np.inf, -np.inf]
    assert not run("sum", np.array([big, big, np.nan, -np.inf]), axis=[0], keepdims=False).unknown


def test_weighted_sums_near_the_largest_number_may_overflow_before_the_division() -> None:
    weights, values = np.array([[0.5, 0.5]]), np.array([[-3.2e38], [-3.2e38]])
    assert run("matmul", weights, values).unknown.all()
    assert not run("matmul", weights, values / 4).unknown.any()
    assert not run("matmul", np.array([[-0.5, 0.5]]), values).unknown.any()


def test_a_quotient_below_every_number_has_no_certain_floor() -> None:
    x, y = np.array([1e-45, 0.0, 1.0, -1e-45]), np.array([-2.5, -2.5, -2.5, 2.5])
    for op in ("floor_mod", "floor_divide"):
        assert run(op, x, y).unknown.tolist() == [True, False, False, True]


def test_the_sign_of_nan_is_zero() -> None:
    assert run("sign", np.array([np.nan, -np.inf, -0.0])).data.tolist() == [0, -1, 0]


@pytest.mark.parametrize("op", ["instance_norm", "group_norm", "layer_norm"])
def test_norms_keep_digits_beside_a_large_mean(op: str) -> None:
    x = np.array([[[100.0, 100.001]]])
    weights = np.ones(2 if op == "layer_norm" else 1)
    groups = {"groups": 1} if op == "group_norm" else {}
    assert (run(op, x, weights, weights, axes=[2], epsilon=1e-5, **groups).error < 0.1).all()


def test_what_a_condition_leaves_out_does_not_matter() -> None:
    condition = exact(np.array([True, False]), "bool")
    x, y = exact(np.array([np.nan, 1.0]), "float32"), exact(np.array([2.0, 3.0]), "float32")
    unsure = Bounded(x.data, np.array([np.inf, 0.0]), "float32")
    assert evaluate_step(Step("where"), [condition, y, unsure], {}, RULES).unknown.tolist() == [False, False]


def test_reductions_of_nothing() -> None:
    nothing = np.zeros((3, 0))
    assert run("sum", nothing, axis=[1], keepdims=False).data.tolist() == [0, 0, 0]
    assert run("prod", nothing, axis=[1], keepdims=False).data.tolist() == [1, 1, 1]
    assert run("mean", nothing, axis=[1], keepdims=False).unknown.all()
    assert run("max", nothing, axis=[1], keepdims=False).unknown.all()


def test_half_types_may_keep_or_round_what_lies_between() -> None:
    x = exact(np.array([1000.0]), "float16")
    large = run("multiply", x, x)
    assert large.unknown.all()  # infinite where it is rounded, 1e6 where it is not
    assert FLOATS["float16"].eps == np.finfo("float16").eps


def test_slices_out_of_bounds_mean_nothing() -> None:
    step = Step(
        "strided_slice", (), {"axes": [0], "begin": [9], "end": ["n"], "strides": [1], "inbound": True}
    )
    with pytest.raises(Inapplicable):
        evaluate_step(step, [exact(np.zeros(5), "float32")], {"n": 5}, RULES)
    got = evaluate_step(step, [exact(np.arange(12.0), "float32")], {"n": 12}, RULES)
    assert got.data.tolist() == [9, 10, 11]


def test_what_there_is_no_memory_for_is_refused_before_it_is_computed() -> None:
    wide = [Input((3, 4, "n", 1), "float32", "normal", 1), Input((1, "n"), "float32", "normal", 2)]
    for op in ("matmul", "add"):
        case = Case(inputs=tuple(wide), steps=(Step(op, (0, 1), {}),), outputs=(2,), sizes=({"n": 40_000},))
        with pytest.raises(Inapplicable, match="broadcasts to"):
            evaluate(case, 0, inputs_of(case, 0), RULES)


def test_a_matmul_repeats_no_axis_of_one_element() -> None:
    """Relax infers a shape for it if the other axis is symbolic, and TVM's kernel then reads behind the operand."""
    wide = [Input((1, 3, "n"), "float32", "normal", 1), Input((1, "n"), "float32", "normal", 2)]
    case = Case(
        inputs=tuple(wide), steps=(Step("matmul", (0, 1), {}),), outputs=(2,), sizes=({"n": 1}, {"n": 4})
    )
    assert evaluate(case, 0, inputs_of(case, 0), RULES)[2].shape == (1, 3, 1)
    with pytest.raises(Inapplicable, match="rows of 4 elements and columns of 1"):
        evaluate(case, 1, inputs_of(case, 1), RULES)


def test_each_product_below_the_smallest_normal_number_is_rounded() -> None:
    x = np.random.default_rng(0).normal(size=(40, 16)).astype("float32")
    y = np.random.default_rng(1).normal(size=(16, 30)).astype("float32") * np.float32(3e-45)
    value = run("matmul", x, y)
    rounded = (x[:, :, None] * y[None]).sum(1)  # denormal products, whose sum is exact
    distance = np.abs(rounded - value.data)
    assert np.all(distance <= value.error) and distance.max() > 3 * 2.0**-149
    assert value.error.max() < 16 * 2.0**-149
    assert run("matmul", x, y, rules=Rules(flush=True)).error.min() > np.abs(value.data).max()
    assert run("matmul", x, 0 * y).error.max() == 0


def test_fast_mathematics_of_cuda_widens_bounds_and_changes_no_value() -> None:
    fast = Rules(fast=True, flush=True)
    for name in ("exp", "sin", "cos", "tan", "tanh", "log", "sigmoid", "gelu"):
        plain, wide = run(name, np.abs(X)), run(name, np.abs(X), rules=fast)
        np.testing.assert_array_equal(plain.data, wide.data)
        assert np.all(wide.error >= plain.error) and wide.error.sum() > plain.error.sum()
        assert np.median(wide.error) < 1e-2
    for name in ("divide", "floor_divide", "floor_mod"):  # fast quotients by huge numbers are 0
        huge = run(name, np.array([1e38, 1.0]), np.array([2.0**127, 3.0]), rules=fast)
        assert huge.unknown.tolist() == [True, False]
        assert not run(name, np.array([1e38, 1.0]), np.array([2.0**127, 3.0])).unknown.any()
