# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells: the description of a layer, and the formulas of LSTM, GRU and RNN cells.

Formulas and the order of gates are ONNX's. An LSTM has the gates input, output, forget and cell. A GRU has update,
reset and hidden. The formulas are written once, over an arithmetic that makes operators of a graph or expressions of a
kernel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from .program import Program


class Arithmetic(Protocol):
    """Makes values of an element-wise computation."""

    def constant(self, value: float) -> Any:
        """Return a constant."""

    def apply(self, operator: str, *operands: Any) -> Any:
        """Return the result of an operator.

        It is one of ``add subtract multiply divide maximum minimum abs exp log tanh sigmoid``, or ``zero_below``:
        (threshold, x) -> x where x is above the threshold, else 0.
        """


@dataclass(frozen=True)
class Activation:
    """An activation function of ONNX, by its lower-case name, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def of(self, arithmetic: Arithmetic, x: Any) -> Any:
        """Return the function's value.

        Raises:
            ValueError: for an unknown function.
        """
        if self.name not in _FUNCTIONS:
            raise ValueError(f"unknown activation {self.name!r}; known are {', '.join(sorted(_FUNCTIONS))}")
        return _FUNCTIONS[self.name](_Formula(arithmetic), self, x)


DEFAULTS = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}
"""Parameters of activations that a model does not give, as ONNX Runtime has them."""


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return an activation, with ONNX Runtime's default parameters where none are given.

    Raises:
        ValueError: for an unknown function.
    """
    name = name.lower()
    if name not in _FUNCTIONS:
        raise ValueError(f"unknown activation {name!r}; known are {', '.join(sorted(_FUNCTIONS))}")
    default = DEFAULTS.get(name, (0.0, 0.0))
    return Activation(
        name, default[0] if alpha is None else float(alpha), default[1] if beta is None else float(beta)
    )


GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Gates of each kind of cell."""
ACTIVATIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
"""Default activations of each kind of cell."""


@dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    Attributes:
        kind: ``lstm``, ``gru`` or ``rnn``, or ``cell`` for one that is a program.
        hidden: number of hidden units.
        activations: as many as ``ACTIVATIONS`` has for the kind.
        clip: bound of the activations' operands, or None.
        input_forget: whether an LSTM's forget gate is one minus its input gate.
        linear_before_reset: whether a GRU applies the reset gate to the product, and not to the state before it.
        peepholes: whether an LSTM's gates see the cell state.
        projection: size of the state if an LSTM multiplies its result by weights, or None.
        program: the function of a cell that has no name, or None.
    """

    kind: str
    hidden: int
    activations: tuple[Activation, ...]
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    peepholes: bool = False
    projection: int | None = None
    program: Program | None = None

    @property
    def state(self) -> int:
        """Size of the state."""
        return self.hidden if self.projection is None else self.projection

    @property
    def gates(self) -> int:
        """Number of gates, each with a product of the state."""
        return GATES[self.kind] if self.program is None else self.program.products

    @property
    def inputs(self) -> int:
        """Number of values of a unit that a step reads of the inputs."""
        return self.gates if self.program is None else self.program.inputs

    @property
    def vectors(self) -> int:
        """Number of values of a unit that all steps read: an LSTM's peepholes, or a program's vectors."""
        if self.program is not None:
            return self.program.vectors
        return 3 if self.peepholes else 0

    @property
    def has_cell_state(self) -> bool:
        """True if there is a second state."""
        return self.kind == "lstm" if self.program is None else len(self.program.results) > 1

    @property
    def two_products(self) -> bool:
        """True if a step multiplies twice: the hidden gate of a GRU multiplies the state times the reset gate."""
        return self.kind == "gru" and not self.linear_before_reset

    @property
    def product_bias(self) -> bool:
        """True if the product of the last gate has a bias of its own, to which the reset gate applies."""
        return self.kind == "gru" and self.linear_before_reset

    def step(
        self,
        arithmetic: Arithmetic,
        inputs: Sequence[Any],
        products: Sequence[Any],
        state: Any,
        cell_state: Any = None,
        peepholes: Sequence[Any] = (),
    ) -> tuple[Any, Any]:
        """Return the next state and cell state of a cell that multiplies once.

        Args:
            arithmetic: makes the values.
            inputs: for each gate, the product of the input, with biases.
            products: for each gate, the product of the state (with ``product_bias`` for a GRU's last).
            state, cell_state: the states before.
            peepholes: weights of the gates input, output and forget, or a program's vectors.
        """
        if self.program is not None:
            return self.program.values(arithmetic, inputs, products, state, cell_state, peepholes)
        a = _Formula(arithmetic)
        if self.kind == "lstm":
            return self._lstm(a, inputs, products, cell_state, peepholes)
        if self.kind == "rnn":
            return self._gate(a, 0, a.add(inputs[0], products[0])), None
        update = self._gate(a, 0, a.add(inputs[0], products[0]))
        reset = self._gate(a, 0, a.add(inputs[1], products[1]))
        hidden = self._gate(a, 1, a.add(inputs[2], a.multiply(reset, products[2])))
        return _between(a, update, hidden, state), None

    def first_half(
        self, arithmetic: Arithmetic, inputs: Sequence[Any], products: Sequence[Any], state: Any
    ) -> tuple[Any, Any]:
        """Return the update gate of a cell that multiplies twice, and the operand of its second product."""
        a = _Formula(arithmetic)
        update = self._gate(a, 0, a.add(inputs[0], products[0]))
        reset = self._gate(a, 0, a.add(inputs[1], products[1]))
        return update, a.multiply(reset, state)

    def second_half(
        self, arithmetic: Arithmetic, hidden_input: Any, product: Any, update: Any, state: Any
    ) -> Any:
        """Return the next state of a cell that multiplies twice."""
        a = _Formula(arithmetic)
        return _between(a, update, self._gate(a, 1, a.add(hidden_input, product)), state)

    def _lstm(
        self,
        a: _Formula,
        inputs: Sequence[Any],
        products: Sequence[Any],
        before: Any,
        peepholes: Sequence[Any],
    ) -> tuple[Any, Any]:
        def gate(number: int, function: int, seen: Any = None) -> Any:
            total = a.add(inputs[number], products[number])
            if seen is not None and peepholes:
                total = a.add(total, a.multiply(peepholes[number], seen))
            return self._gate(a, function, total)

        entering = gate(0, 0, before)
        kept = a.subtract(a.constant(1.0), entering) if self.input_forget else gate(2, 0, before)
        after = a.add(a.multiply(kept, before), a.multiply(entering, gate(3, 1)))
        leaving = gate(1, 0, after)
        return a.multiply(leaving, self.activations[2].of(a.arithmetic, after)), after

    def _gate(self, a: _Formula, function: int, total: Any) -> Any:
        if self.clip is not None:
            total = a.maximum(a.constant(-self.clip), a.minimum(a.constant(self.clip), total))
        return self.activations[function].of(a.arithmetic, total)


@dataclass(frozen=True)
class Layer:
    """One direction of a recurrent layer.

    Attributes:
        cell: its cell.
        backwards: whether it begins at the last step.
        masked: whether each sequence of the batch has a length of its own.
    """

    cell: Cell
    backwards: bool = False
    masked: bool = False

    def to_text(self) -> str:
        """Return the layer as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Layer:
        """Return the layer that :meth:`to_text` wrote."""
        fields = json.loads(text)
        cell = fields.pop("cell")
        program = cell.pop("program", None)
        cell["program"] = None if program is None else Program.of_fields(program)
        cell["activations"] = tuple(Activation(**each) for each in cell["activations"])
        return Layer(Cell(**cell), **fields)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands, in order.

        The inputs ``x`` are <T,B,I>, and their weights ``w`` <G*H,I>. The state's weights ``r`` are <G*H,S>, where S is
        the size of the state, and ``bias`` is <G*H>. The states ``h`` <B,S> and ``c`` <B,H> follow. Some cells have
        ``peepholes`` <3*H>, ``product_bias`` <H> or ``projection`` <S,H>. The ``lengths`` are <B> of int32.

        A program has no ``w`` and no ``bias``. Its inputs ``x`` are <T,B,N*H> for N inputs, and its ``vectors`` <V*H>.
        """
        cell = self.cell
        named = cell.program is None
        asked = {
            "w": named,
            "bias": named,
            "vectors": not named and cell.vectors > 0,
            "c": cell.has_cell_state,
            "peepholes": cell.peepholes,
            "product_bias": cell.product_bias,
            "projection": cell.projection is not None,
            "lengths": self.masked,
        }
        names = (
            "x",
            "w",
            "r",
            "bias",
            "h",
            "c",
            "peepholes",
            "vectors",
            "product_bias",
            "projection",
            "lengths",
        )
        return tuple(name for name in names if asked.get(name, True))

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the operands that only some layers have, but for an LSTM's first cell state."""
        return tuple(name for name in self.operands if name not in ("x", "w", "r", "bias", "h", "c"))


@dataclass(frozen=True, eq=False)
class Part:
    """A product of a step and the cell behind it.

    Attributes:
        step: number of the step.
        gates: the gates that it computes.
        second: whether it is the second product of a step, of the state times the reset gate.
    """

    step: Any
    gates: tuple[int, ...]
    second: bool = False


def parts_of(cell: Cell, step: Any) -> list[Part]:
    """Return the products of a step in order. A kernel exchanges the state behind each of them."""
    if cell.two_products:
        return [Part(step, (0, 1)), Part(step, (2,), second=True)]
    return [Part(step, tuple(range(cell.gates)))]


class _Formula:
    """Operators of an arithmetic by name."""

    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic

    def __getattr__(self, operator: str) -> Any:
        return lambda *operands: self.arithmetic.apply(operator, *operands)

    def constant(self, value: float) -> Any:
        return self.arithmetic.constant(value)


def _between(a: _Formula, update: Any, hidden: Any, state: Any) -> Any:
    """Return (1 - update) * hidden + update * state."""
    return a.add(a.multiply(a.subtract(a.constant(1.0), update), hidden), a.multiply(update, state))


def _above(a: _Formula, x: Any) -> Any:
    return a.maximum(a.constant(0.0), x)


def _below(a: _Formula, x: Any) -> Any:
    return a.minimum(a.constant(0.0), x)


def _scaled(a: _Formula, factor: float, x: Any) -> Any:
    return a.multiply(a.constant(factor), x)


def _hard_sigmoid(a: _Formula, f: Activation, x: Any) -> Any:
    line = a.add(_scaled(a, f.alpha, x), a.constant(f.beta))
    return a.minimum(a.constant(1.0), a.maximum(a.constant(0.0), line))


def _elu(a: _Formula, f: Activation, x: Any) -> Any:
    less = a.subtract(a.exp(_below(a, x)), a.constant(1.0))
    return a.add(_above(a, x), _scaled(a, f.alpha, less))


def _softplus(a: _Formula, f: Activation, x: Any) -> Any:
    small = a.exp(a.subtract(a.constant(0.0), a.abs(x)))  # never infinite
    return a.add(_above(a, x), a.log(a.add(a.constant(1.0), small)))


def _threshold(a: _Formula, f: Activation, x: Any) -> Any:
    return a.zero_below(a.constant(math.nextafter(f.alpha, -math.inf)), x)


_FUNCTIONS: dict[str, Any] = {
    "affine": lambda a, f, x: a.add(_scaled(a, f.alpha, x), a.constant(f.beta)),
    "elu": _elu,
    "hardsigmoid": _hard_sigmoid,
    "leakyrelu": lambda a, f, x: a.add(_above(a, x), _scaled(a, f.alpha, _below(a, x))),
    "relu": lambda a, f, x: _above(a, x),
    "scaledtanh": lambda a, f, x: _scaled(a, f.alpha, a.tanh(_scaled(a, f.beta, x))),
    "sigmoid": lambda a, f, x: a.sigmoid(x),
    "softplus": _softplus,
    "softsign": lambda a, f, x: a.divide(x, a.add(a.constant(1.0), a.abs(x))),
    "tanh": lambda a, f, x: a.tanh(x),
    "thresholdedrelu": _threshold,
}
