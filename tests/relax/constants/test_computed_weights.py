# SPDX-License-Identifier: Apache-2.0
"""Weights that are computed from constants alone become constants, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.choices import CHOICES
from tests.graph.helpers import build, symbol
from tvm_stitch.cost.choices import Choices
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.constants.computed_weights import ComputedWeights
from tvm_stitch.relax.constants.fold import FoldConstants
from tvm_stitch.relax.rewriting.operators import PRODUCTS, operator_name

RNG = np.random.default_rng(3)
W = RNG.standard_normal((8, 6)).astype("float32")
KERNEL = RNG.standard_normal((12, 4, 3)).astype("float32")
SPEC = ((2, 8), "float32")


def computed(mod: tvm.IRModule, choices: Choices = CHOICES) -> tvm.IRModule:
    return ComputedWeights([relax.transform.LegalizeOps(), FoldConstants()], choices)(mod)


def weights_of(mod: tvm.IRModule) -> list[np.ndarray]:
    """Return the constants that products read."""
    values = relax.analysis.get_var2val(computed(mod)["main"]).values()
    read = [arg for call in values if operator_name(call) in PRODUCTS for arg in call.args]
    return [arg.value.numpy() for arg in read if isinstance(arg, tvm.ir.GenericConst)]


def normalized(emit: Any, weight: np.ndarray, axes: list[int]) -> Any:
    """Weight norm as PyTorch's importer has it."""
    given = relax.const(weight)
    squares = emit(R.power(emit(R.abs(given)), relax.const(2.0)))
    length = emit(R.power(emit(R.sum(squares, axes, keepdims=True)), relax.const(0.5)))
    return emit(R.multiply(given, emit(R.divide(relax.const(np.float32(1.5)), length))))


def reference(weight: np.ndarray, axes: list[int]) -> np.ndarray:
    exact = weight.astype("float64")
    return 1.5 * exact / np.sqrt((exact**2).sum(tuple(axes), keepdims=True))


def test_a_normalized_weight() -> None:
    (found,) = weights_of(build(lambda emit, x: R.matmul(x, normalized(emit, W, [0])), SPEC))
    np.testing.assert_allclose(found, reference(W, [0]), rtol=1e-6)


def test_only_the_weight_is_left() -> None:
    """The operators that computed it are gone, and so are their functions."""
    mod = computed(build(lambda emit, x: R.matmul(x, normalized(emit, W, [0])), SPEC))
    assert list(map(operator_name, relax.analysis.get_var2val(mod["main"]).values())) == ["relax.matmul"]
    assert [gvar.name_hint for gvar in mod.get_global_vars()] == ["main"]


def test_a_weight_with_an_adapter() -> None:
    """A product of constants alone is computed as well."""
    a, b = RNG.standard_normal((8, 2)).astype("float32"), RNG.standard_normal((2, 6)).astype("float32")

    def body(emit: Any, x: Any) -> Any:
        merged = emit(R.add(relax.const(W), emit(R.matmul(relax.const(a), relax.const(b)))))
        return R.matmul(x, merged)

    np.testing.assert_allclose(weights_of(build(body, SPEC))[-1], W + a.astype("float64") @ b, rtol=1e-5)


def test_a_joined_weight() -> None:
    def body(emit: Any, x: Any) -> Any:
        return R.matmul(x, emit(R.concat([emit(R.negative(relax.const(W))), relax.const(W)], axis=1)))

    (found,) = weights_of(build(body, SPEC))
    np.testing.assert_array_equal(found, np.concatenate([-W, W], axis=1))


def test_one_weight_of_two_products_is_one_constant() -> None:
    def body(emit: Any, x: Any) -> Any:
        weight = normalized(emit, W, [0])
        return [R.matmul(x, weight), R.matmul(emit(R.exp(x)), weight)]

    values = relax.analysis.get_var2val(computed(build(body, SPEC))["main"]).values()
    first, second = (call.args[1] for call in values if operator_name(call) == "relax.matmul")
    assert first.value.same_as(second.value)


N = symbol()


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        (lambda emit, x: R.add(x, normalized(emit, W.T[:2], [0])), ((2, 8), "float32")),
        (lambda emit, x: R.matmul(relax.const(W.T), emit(R.exp(x))), ((8, 2), "float32")),
        (lambda emit, x: R.matmul(x, emit(R.full((N, 6), relax.const(0.5), "float32"))), ((2, N), "float32")),
        (
            lambda emit, x: R.matmul(
                x, emit(relax.call_dps_packed("filled", (relax.const(W),), relax.TensorType((8, 6), "float32")))
            ),
            ((2, 8), "float32"),
        ),
    ],
    ids=["a sum's", "computed from a parameter", "symbolic", "by a function of somebody else"],
)  # fmt: skip
def test_others_stay(body: Any, spec: Any) -> None:
    mod = build(body, spec)
    tvm.ir.assert_structural_equal(computed(mod), mod)


def test_a_weight_that_is_too_large_stays() -> None:
    mod = build(lambda emit, x: R.matmul(x, normalized(emit, W, [0])), SPEC)
    tvm.ir.assert_structural_equal(computed(mod, Choices(largest_filled_weight=W.nbytes - 1)), mod)


def causal(emit: Any, size: int) -> Any:
    """Build a causal mask like PyTorch's importer."""
    rows, columns = (emit(R.reshape(emit(R.arange(0, size, 1, "int64")), s)) for s in ([size, 1], [1, size]))
    seen = emit(
        R.logical_and(
            emit(R.less_equal(columns, rows)), emit(R.full((size, size), relax.const(True), "bool"))
        )
    )
    return emit(R.where(seen, relax.const(0.0), relax.const(float("-inf"))))


def test_a_mask_is_a_constant() -> None:
    mod = computed(build(lambda emit, x: R.add(x, causal(emit, 8)), ((2, 8, 8), "float32")))
    (added,) = relax.analysis.get_var2val(mod["main"]).values()
    expected = np.where(np.tri(8, dtype=bool), np.float32(0), -np.inf)
    np.testing.assert_array_equal(added.args[1].value.numpy(), expected)


def test_a_mask_that_is_too_large_stays() -> None:
    mod = build(lambda emit, x: R.add(x, causal(emit, 8)), ((2, 8, 8), "float32"))
    tvm.ir.assert_structural_equal(computed(mod, Choices(largest_table=8 * 8 * 4 - 1)), mod)


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: R.add(x, emit(R.full((8, 8), relax.const(2.0), "float32"))),
        lambda emit, x: R.add(x, emit(R.exp(emit(R.zeros((8, 8), "float32"))))),
        lambda emit, x: R.concat([x, emit(R.zeros((8, 0), "float32"))], 1),
    ],
    ids=["filled", "of filled ones", "empty"],
)
def test_one_value_needs_no_memory(body: Any) -> None:
    mod = build(body, ((8, 8), "float32"))
    tvm.ir.assert_structural_equal(computed(mod), mod)


def test_a_weight_that_is_not_folded_stays() -> None:
    mod = build(lambda emit, x: R.matmul(x, normalized(emit, W, [0])), SPEC)
    tvm.ir.assert_structural_equal(ComputedWeights([], CHOICES)(mod), mod)


def test_a_grouped_convolution_of_a_normalized_weight() -> None:
    """Its kernel is ours, and nothing computes the weight in a call."""

    def body(emit: Any, x: Any) -> Any:
        return R.nn.conv1d(x, normalized(emit, KERNEL, [0, 1]), padding=1, groups=2)

    mod = build(body, ((1, 8, 20), "float32"))
    target = tvm.target.Target("llvm")
    with target:
        lowered = pipeline(target)(mod)
    (kernel,) = [gvar.name_hint for gvar in lowered.get_global_vars() if gvar.name_hint != "main"]
    assert kernel.endswith("_tiled")
    x = RNG.standard_normal((1, 8, 20)).astype("float32")
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1))), 3, 2
    )
    weight = reference(KERNEL, [0, 1])
    wanted = [
        np.einsum("nclk,fck->nfl", windows[:, 4 * g : 4 * g + 4], weight[6 * g : 6 * g + 6]) for g in (0, 1)
    ]
    np.testing.assert_allclose(got, np.concatenate(wanted, axis=1), rtol=1e-5, atol=1e-5)


def test_a_weight_that_a_batch_norm_standardizes() -> None:
    """As PyTorch's ONNX exporter writes standardized convolutions: the operator has several results."""
    ones, zeros = np.ones(6, "float32"), np.zeros(6, "float32")

    def body(emit: Any, x: Any) -> Any:
        parameters = [relax.const(array) for array in (ones, zeros, zeros, ones)]
        standardized = emit(R.nn.batch_norm(relax.const(W), *parameters, 1, epsilon=1e-5, training=True))
        return R.matmul(x, emit(relax.TupleGetItem(standardized, 0)))

    (found,) = weights_of(build(body, SPEC))
    exact = W.astype("float64")
    np.testing.assert_allclose(found, (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-5), rtol=1e-4)
