# SPDX-License-Identifier: Apache-2.0
"""Means of channels are expected from the model alone, about as random inputs have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build, symbol
from tvm_stitch.relax.precision.expected_means import SAMPLES, expected_means, valid_fractions

C = 8
DEVIATIONS = 5 / SAMPLES**0.5
"""Of a channel: the most that the mean of its samples may be off."""


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype("float32")


def convolved(emit: Any, x: Any, out: int = C, seed: int = 0, **attrs: Any) -> Any:
    groups, taps = attrs.get("groups", 1), 1 if int(x.ty.shape[2]) == 1 else 3
    weight = draw(out, int(x.ty.shape[1]) // groups, taps, taps, seed=seed) / 3
    return emit(R.nn.conv2d(x, relax.const(weight), padding=taps // 2, **attrs))


def biased(emit: Any, x: Any, seed: int = 0, **attrs: Any) -> Any:
    y = convolved(emit, x, seed=seed, **attrs)
    return emit(R.add(y, emit(R.reshape(relax.const(draw(C, seed=seed)), (1, C, 1, 1)))))


def normed(emit: Any, x: Any, parameters: list[np.ndarray] | None = None) -> Any:
    if parameters is None:
        parameters = [draw(C), draw(C, seed=1), draw(C, seed=2), np.abs(draw(C, seed=3)) + 0.5]
    made = emit(R.nn.batch_norm(x, *map(relax.const, parameters), axis=1, training=False))
    return emit(relax.TupleGetItem(made, 0))


def relu(emit: Any, x: Any) -> Any:
    return emit(R.nn.relu(x))


def a_gate(emit: Any, x: Any) -> Any:
    y = relu(emit, biased(emit, x))
    pooled = emit(R.mean(y, axis=[2, 3], keepdims=True))
    return emit(R.multiply(y, emit(R.sigmoid(biased(emit, pooled, seed=1)))))


def a_residual(emit: Any, x: Any) -> Any:
    y = relu(emit, biased(emit, x))
    return relu(emit, emit(R.add(y, biased(emit, y, seed=2))))


def parts(emit: Any, x: Any) -> Any:
    split = emit(R.split(relu(emit, biased(emit, x)), 2, axis=1))
    fields = [emit(relax.TupleGetItem(split, i)) for i in (1, 0)]
    return emit(R.concat([emit(R.tanh(fields[0])), emit(R.clip(fields[1], 0.1, 0.4))], axis=1))


def branches(emit: Any, x: Any) -> Any:
    """Attention over two branches, as in selective kernels."""
    both = [emit(R.reshape(relu(emit, biased(emit, x, seed=s)), (4, 1, C, 12, 12))) for s in (3, 4)]
    joined = emit(R.concat(both, axis=1))
    pooled = emit(R.mean(emit(R.sum(joined, axis=1)), axis=[2, 3], keepdims=True))
    scores = emit(R.reshape(convolved(emit, pooled, 2 * C), (4, 2, C, 1, 1)))
    return emit(R.sum(emit(R.multiply(joined, emit(R.nn.softmax(scores, axis=1)))), axis=1))


NETWORKS = [
    lambda emit, x: biased(emit, x, strides=2),
    lambda emit, x: relu(emit, normed(emit, convolved(emit, x))),
    lambda emit, x: emit(R.nn.max_pool2d(biased(emit, x), (2, 2), strides=2)),
    lambda emit, x: emit(R.nn.avg_pool2d(relu(emit, biased(emit, x)), (2, 2), strides=2)),
    lambda emit, x: emit(R.image.resize2d(relu(emit, biased(emit, x)), (24, 24), layout="NCHW")),
    lambda emit, x: relu(emit, biased(emit, a_residual(emit, x), seed=5, groups=4)),
    a_gate,
    a_residual,
    parts,
    branches,
]


def found(body: Any, shape: tuple[int, ...] = (4, C, 12, 12)) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Return the module of a body with a convolution behind it, and the expected means of all convolutions."""
    mod = build(lambda emit, x: convolved(emit, body(emit, x), seed=9), (shape, "float32"))
    return mod, list(expected_means(mod["main"]).values())


@pytest.mark.parametrize("body", NETWORKS)
def test_means_of_random_inputs(body: Any) -> None:
    _, means = found(body)
    shape = (4, C, 12, 12)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    mod = build(body, (shape, "float32"))
    mod = relax.transform.DecomposeOpsForInference()(mod)
    run = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    result = run(tvm.runtime.tensor(x)).numpy()
    off = np.abs(means[-1] - result.mean((0, 2, 3)))
    assert (off <= 2 * DEVIATIONS * (result.std((0, 2, 3)) + 0.02)).all(), off


def test_norms_of_trained_models_say_their_means() -> None:
    """If the running means are expected, results have the means and deviations of the norms."""
    ones, variance = np.ones(C, "float32"), np.full(C, 100, "float32")
    beta = 2 + np.abs(draw(C))

    def body(trained: bool) -> Any:
        def layers(emit: Any, x: Any) -> Any:
            y = relu(emit, normed(emit, convolved(emit, x), [ones, beta, 0 * ones, variance]))
            weight = draw(C, C, 3, 3, seed=1) / 3  # a mean of about beta: ReLU changes little of it
            y = emit(R.nn.conv2d(y, relax.const(weight)))
            mean = (weight.sum((2, 3)) * beta).sum(1) if trained else draw(C, seed=7)
            return normed(emit, y, [ones, 0 * ones, mean, variance])

        return layers

    (_, _, trained), (_, _, given) = (found(body(each))[1] for each in (True, False))
    assert np.abs(trained).max() < 1e-5  # beta of the last norm
    assert np.abs(given).max() > 0.1


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: emit(R.cumsum(x, axis=2)),
        lambda emit, x: emit(R.add(x, relax.const(draw(1, C, 12, 12)))),
        lambda emit, x: emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2, 3])), (4, C, 12, 12))),
        lambda emit, x: emit(R.reshape(x, (4, 2 * C, 6, 12))),
    ],
)
def test_nothing_is_expected_behind_other_operators(body: Any) -> None:
    channels_differ = build(lambda emit, x: convolved(emit, body(emit, x)), ((4, C, 12, 12), "float32"))
    assert not expected_means(channels_differ["main"])


def test_a_norm_of_something_unknown_has_its_own_parameters_if_norms_are_trusted() -> None:
    """A model that is not trained has norms that do not know what they read."""
    ones, variance = np.ones(C, "float32"), np.full(C, 100, "float32")
    gamma, shift, beta = draw(C), draw(C, seed=1) * 3, 2 + np.abs(draw(C))

    def body(trained: bool) -> Any:
        def layers(emit: Any, x: Any) -> Any:
            y = relu(emit, normed(emit, convolved(emit, x), [ones, beta, 0 * ones, variance]))
            weight = draw(C, C, 3, 3, seed=1) / 3
            mean = (weight.sum((2, 3)) * beta).sum(1) if trained else draw(C, seed=7)
            y = normed(emit, emit(R.nn.conv2d(y, relax.const(weight))), [ones, 0 * ones, mean, variance])
            return normed(emit, emit(R.cumsum(y, axis=2)), [gamma, shift, 0 * ones, ones])

        return layers

    (trained, given) = (found(body(each))[1] for each in (True, False))
    assert len(trained) == 3 and len(given) == 2
    assert (np.abs(trained[-1] - shift) <= DEVIATIONS * np.abs(gamma)).all()


def test_taps_that_read_padding() -> None:
    mod = build(
        lambda emit, x: emit(R.nn.conv2d(x, relax.const(draw(4, C, 3, 1)), padding=(1, 0), strides=(2, 1))),
        ((1, C, 6, 5), "float32"),
    )
    call = next(v for v in relax.analysis.get_var2val(mod["main"]).values() if isinstance(v, relax.Call))
    np.testing.assert_allclose(valid_fractions(call), [[2 / 3], [1], [1]])


def _pair_of_gray(emit: Any, x: Any) -> Any:
    weights = [relax.const(draw(1, C, 3, 3, seed=at)) for at in range(2)]
    return emit(R.concat([emit(R.nn.conv2d(x, weight, padding=1)) for weight in weights], axis=1))


def _more_channels(emit: Any, x: Any) -> Any:
    return emit(R.nn.pad(x, [0, 0, 1, 1, 0, 0, 0, 0]))


def _slices_of_symbolic_extent(emit: Any, x: Any) -> Any:
    return emit(relax.TupleGetItem(emit(R.split(x, 2, axis=2)), 0))


@pytest.mark.parametrize("made", [_pair_of_gray, _more_channels, _slices_of_symbolic_extent])
def test_channels_that_samples_lack(made: Any) -> None:
    def model(emit: Any, x: Any) -> Any:
        read = made(emit, x)
        return emit(R.nn.conv2d(read, relax.const(draw(C, int(read.ty.shape[1]), 3, 3)), padding=1))

    mod = build(model, ((1, C, symbol("h"), 6), "float32"))
    (last, read) = [(v, c.args[0]) for v, c in convolutions_of(mod)][-1]
    means = expected_means(mod["main"])
    assert last not in means or means[last].size == int(read.ty.shape[1])


def test_gray_parts_are_channels() -> None:
    mod = build(lambda emit, x: convolved(emit, _pair_of_gray(emit, x)), ((1, C, 6, 6), "float32"))
    var, _ = convolutions_of(mod)[-1]
    assert expected_means(mod["main"])[var].size == 2


@pytest.mark.parametrize(("before", "after"), [((0, 4, 5), (0, 7)), ((2, 0, 3), (2, 0, 7))])
def test_reshapes_of_nothing_end(before: Any, after: Any) -> None:
    mod = build(lambda emit, x: R.reshape(x, after), (before, "float32"))
    assert not expected_means(mod["main"])


def test_a_reshape_of_a_computed_constant() -> None:
    def model(emit: Any, x: Any) -> Any:
        bias = emit(R.reshape(emit(R.negative(relax.const(draw(1, C)))), (1, C, 1, 1)))
        return emit(R.add(convolved(emit, x), bias))

    assert expected_means(build(model, ((1, C, 6, 6), "float32"))["main"])


def convolutions_of(mod: tvm.IRModule) -> list[tuple[relax.Var, relax.Call]]:
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [
        (b.var, b.value) for b in bindings if getattr(b.value, "op", None) == tvm.ir.Op.get("relax.nn.conv2d")
    ]
