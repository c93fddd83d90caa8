# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in float64 after ONNX's text, step by step, and operands drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_stitch.compute.recurrent.cell import ACTIVATIONS, Activation, Cell, Layer, activation

Array = Any


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[Activation, Array], Array]] = {
    "affine": lambda f, x: f.alpha * x + f.beta,
    "elu": lambda f, x: np.where(x >= 0, x, f.alpha * np.expm1(x)),
    "hardsigmoid": lambda f, x: np.clip(f.alpha * x + f.beta, 0, 1),
    "leakyrelu": lambda f, x: np.where(x >= 0, x, f.alpha * x),
    "relu": lambda f, x: np.maximum(x, 0),
    "scaledtanh": lambda f, x: f.alpha * np.tanh(f.beta * x),
    "sigmoid": lambda f, x: sigmoid(x),
    "softplus": lambda f, x: np.logaddexp(0, x),
    "softsign": lambda f, x: x / (1 + np.abs(x)),
    "tanh": lambda f, x: np.tanh(x),
    "thresholdedrelu": lambda f, x: np.where(x >= f.alpha, x, 0),
}


def cell_of(kind: str, hidden: int, names: Any = None, **options: Any) -> Cell:
    """Return a cell with activations given as names or tuples of a name and its parameters."""
    given = [(name,) if isinstance(name, str) else name for name in names or ACTIVATIONS[kind]]
    return Cell(kind, hidden, tuple(activation(*each) for each in given), **options)


def draw(layer: Layer, steps: int, batch: int, features: int, seed: int = 0) -> dict[str, Array]:
    """Return operands of a layer by name, in float32, and lengths from 0 on."""
    cell, generator = layer.cell, np.random.default_rng(seed)
    gates, hidden, state = cell.gates, cell.hidden, cell.state
    shapes = {
        "x": (steps, batch, features),
        "w": (gates * hidden, features),
        "r": (gates * hidden, state),
        "bias": (gates * hidden,),
        "h": (batch, state),
        "c": (batch, hidden),
        "peepholes": (3 * hidden,),
        "product_bias": (hidden,),
        "projection": (state, hidden),
    }
    made: dict[str, Array] = {
        name: (generator.standard_normal(shapes[name]) * 0.4).astype("float32")
        for name in layer.operands
        if name in shapes
    }
    made["r"] *= np.float32(2 / np.sqrt(state))  # else small errors grow from step to step
    if layer.masked:
        made["lengths"] = generator.integers(0, steps + 1, batch).astype("int32")
    return made


def layer_in_float64(layer: Layer, operands: Mapping[str, Array]) -> list[Array]:
    """Return the states of all steps, the last state, and an LSTM's last cell state."""
    cell = layer.cell
    of = {name: value if name == "lengths" else value.astype("float64") for name, value in operands.items()}
    x, h, hidden = of["x"], of["h"], cell.hidden
    steps, batch, _ = x.shape
    c = of.get("c", np.zeros((batch, hidden)))
    y = np.zeros((steps, batch, cell.state))
    w, r, bias = (np.split(of[name], cell.gates) for name in ("w", "r", "bias"))
    seen = np.split(of.get("peepholes", np.zeros(3 * hidden)), 3)

    def act(number: int, total: Array) -> Array:
        function = cell.activations[number]
        return FUNCTIONS[function.name](function, total)

    def gate(number: int, total: Array) -> Array:
        return act(number, total if cell.clip is None else np.clip(total, -cell.clip, cell.clip))

    for step in range(steps):
        t = steps - 1 - step if layer.backwards else step
        into = [x[t] @ w[g].T + bias[g] for g in range(cell.gates)]
        if cell.kind == "lstm":
            i = gate(0, into[0] + h @ r[0].T + seen[0] * c)
            f = 1 - i if cell.input_forget else gate(0, into[2] + h @ r[2].T + seen[2] * c)
            after_c = f * c + i * gate(1, into[3] + h @ r[3].T)
            after = gate(0, into[1] + h @ r[1].T + seen[1] * after_c) * act(2, after_c)
            after = after if cell.projection is None else after @ of["projection"].T
        elif cell.kind == "gru":
            update, reset = (gate(0, into[g] + h @ r[g].T) for g in (0, 1))
            if cell.linear_before_reset:
                new = gate(1, into[2] + reset * (h @ r[2].T + of["product_bias"]))
            else:
                new = gate(1, into[2] + (reset * h) @ r[2].T)
            after, after_c = (1 - update) * new + update * h, c
        else:
            after, after_c = gate(0, into[0] + h @ r[0].T), c
        inside = (t < of["lengths"])[:, None] if layer.masked else np.ones((batch, 1), bool)
        y[t] = np.where(inside, after, 0)
        h, c = np.where(inside, after, h), np.where(inside, after_c, c)
    return [y, h, c] if cell.has_cell_state else [y, h]


def same(found: Any, wanted: list[Array], tolerance: float = 2e-6) -> bool:
    """Return whether results have the wanted shapes and values, relative to the greatest."""
    found = [each.numpy() for each in found]
    assert [a.shape for a in found] == [b.shape for b in wanted]
    return all(
        np.allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))
        for a, b in zip(found, wanted, strict=True)
    )


LAYERS = [
    Layer(cell_of("lstm", 20)),
    Layer(cell_of("lstm", 16, ["hardsigmoid", "softsign", "elu"], peepholes=True, clip=0.7), True, True),
    Layer(cell_of("lstm", 33, input_forget=True), masked=True),
    Layer(cell_of("gru", 19), True, True),
    Layer(cell_of("gru", 16, linear_before_reset=True)),
    Layer(cell_of("rnn", 35, ["relu"], clip=1.0), True),
]
"""Layers of all kinds of cells and options."""
