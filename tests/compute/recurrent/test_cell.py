# SPDX-License-Identifier: Apache-2.0
"""The formulas of recurrent cells, computed with NumPy in float64, and their descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compute.recurrent.reference import FUNCTIONS, cell_of, draw, layer_in_float64
from tvm_stitch.compute.recurrent.cell import Layer, activation


class _Numbers:
    """The arithmetic of arrays."""

    def constant(self, value: float) -> Any:
        return np.float64(value)

    def apply(self, operator: str, *operands: Any) -> Any:
        if operator == "sigmoid":
            return 1 / (1 + np.exp(-operands[0]))
        if operator == "zero_below":
            return np.where(operands[1] > operands[0], operands[1], 0.0)
        return getattr(np, operator)(*operands)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_activations(name: str) -> None:
    function = activation(name, 0.7, 0.3)
    x = np.linspace(-30, 30, 601)
    assert np.allclose(function.of(_Numbers(), x), FUNCTIONS[name](function, x), rtol=1e-12, atol=1e-12)


def test_parameters_that_a_model_leaves_out() -> None:
    assert (activation("HardSigmoid").alpha, activation("HardSigmoid").beta) == (0.2, 0.5)
    assert activation("LeakyRelu").alpha == 0.01
    assert activation("Elu", 2).alpha == 2


def test_an_unknown_activation_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown activation 'swish'; known are affine, elu"):
        activation("Swish")


@pytest.mark.parametrize(
    "cell",
    [
        cell_of("lstm", 5, clip=0.6),
        cell_of("lstm", 5, peepholes=True),
        cell_of("lstm", 5, input_forget=True),
        cell_of("gru", 5),
        cell_of("gru", 5, linear_before_reset=True, clip=0.3),
        cell_of("rnn", 5, ["softsign"]),
    ],
)
def test_a_step(cell: Any) -> None:
    layer = Layer(cell)
    given = {name: value.astype("float64") for name, value in draw(layer, 1, 3, 4).items()}
    parts = {name: np.split(given[name], cell.gates) for name in ("w", "r", "bias")}
    inputs = [given["x"][0] @ w.T + b for w, b in zip(parts["w"], parts["bias"], strict=True)]
    products = [given["h"] @ r.T for r in parts["r"]]
    if cell.two_products:
        update, operand = cell.first_half(_Numbers(), inputs[:2], products[:2], given["h"])
        state = cell.second_half(_Numbers(), inputs[2], operand @ parts["r"][2].T, update, given["h"])
        found = [state]
    else:
        if cell.product_bias:
            products[2] = products[2] + given["product_bias"]
        seen = np.split(given["peepholes"], 3) if cell.peepholes else ()
        found = list(cell.step(_Numbers(), inputs, products, given["h"], given.get("c"), seen))
    for a, b in zip(found, layer_in_float64(layer, given)[1:]):
        assert np.allclose(a, b, rtol=1e-12)


def test_a_layer_as_text() -> None:
    layer = Layer(cell_of("lstm", 7, [("affine", 0.5, 0.1), "tanh", "elu"], clip=2.0), True, True)
    assert Layer.from_text(layer.to_text()) == layer
    assert layer.operands == ("x", "w", "r", "bias", "h", "c", "lengths")
