# SPDX-License-Identifier: Apache-2.0
"""Random chains of products of few rows, norms, gates and residuals, with their results in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on
import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

WIDTHS = (24, 32, 40, 64, 96, 128)
MOST_STEPS = 9


@dataclass(eq=False)
class Value:
    """A value of the chain <1, rows, width>, as an expression of Relax and as an array of float64."""

    made: Any
    exact: np.ndarray

    @property
    def width(self) -> int:
        return int(self.exact.shape[-1])


@dataclass
class Chain:
    """A module, its inputs, and its results in float64."""

    mod: tvm.IRModule
    inputs: list[np.ndarray]
    results: list[np.ndarray]
    steps: list[str] = field(default_factory=list)


def random_chain(seed: int) -> Chain:
    """Return a chain that a seed determines: 1 to 3 rows, float32 or a half type."""
    return _Grower(np.random.default_rng(seed)).grown()


class _Grower:
    def __init__(self, rng: np.random.Generator):
        self.rng, self.rows = rng, int(rng.integers(1, 4))
        self.dtype = str(rng.choice(["float32", "float32", "float16", "bfloat16"]))
        self.arrays: list[np.ndarray] = []
        self.params: list[Any] = []
        self.values: list[Value] = []

    def grown(self) -> Chain:
        """Grow the chain."""
        steps: list[Callable[[Value], Value | None]] = [
            self._linear, self._linear, self._linear, self._gated, self._norm, self._norm, self._residual,
            self._activation, self._turned, self._biased,
        ]  # fmt: skip
        builder = relax.BlockBuilder()
        names: list[str] = []
        self.chosen = [
            steps[int(self.rng.integers(len(steps)))] for _ in range(int(self.rng.integers(3, MOST_STEPS)))
        ]
        first = int(self.rng.choice(WIDTHS))
        # Parameters come before the body, so that the body is written twice: once to find them.
        state = self.rng.bit_generator.state
        self.emit: Callable[[Any], Any] = lambda value: value
        self._body(first, dry=True, names=names)
        self.rng.bit_generator.state = state
        params, arrays = self.params, self.arrays
        self.params, self.arrays = [], []
        self.given = iter(params)
        with builder.function("main", params):
            with builder.dataflow():
                self.emit = builder.emit
                results = self._body(first, dry=False, names=[])
                out = builder.emit_output(relax.Tuple([each.made for each in results]))
            builder.emit_func_output(out)
        return Chain(builder.get(), arrays, [each.exact for each in results], names)

    def _body(self, first: int, dry: bool, names: list[str]) -> list[Value]:
        self.dry, self.values = dry, []
        self.values.append(self._input((1, self.rows, first)))
        for step in self.chosen:
            made = step(self.values[-1])
            if made is not None:
                self.values.append(made)
                names.append(step.__name__.strip("_"))
        several = [v for v in self.values[1:-1] if self.rng.random() < 0.25]
        return [*several, self.values[-1]] if len(self.values) > 1 else [self._linear(self.values[0])]

    def _input(self, shape: tuple[int, ...], spread: float = 1.0) -> Value:
        array = (self.rng.standard_normal(shape) * spread).astype(self.dtype)
        self.arrays.append(array)
        param = (
            relax.Var(f"p{len(self.params)}", relax.TensorType(shape, self.dtype))
            if self.dry
            else next(self.given)
        )
        self.params.append(param)
        return Value(param, array.astype("float64"))

    def _do(self, make: Callable[[], Any], exact: np.ndarray) -> Value:
        return Value(None if self.dry else self.emit(make()), exact)

    def _times(self, x: Value, columns: int) -> Value:
        weight = self._input((columns, x.width), x.width**-0.5)
        turned = self._do(lambda: op.permute_dims(weight.made), weight.exact.T)
        return self._do(lambda: op.matmul(x.made, turned.made), x.exact @ turned.exact)

    def _linear(self, x: Value) -> Value:
        return self._times(x, int(self.rng.choice(WIDTHS)))

    def _gated(self, x: Value) -> Value:
        width = int(self.rng.choice(WIDTHS))
        both = self._times(x, 2 * width)
        halves = None if self.dry else self.emit(op.split(both.made, 2, axis=-1))
        gate, up = both.exact[..., :width], both.exact[..., width:]
        made = self._do(lambda: op.nn.silu(halves[0]), gate / (1 + np.exp(-gate)))
        return self._do(lambda: op.multiply(made.made, halves[1]), made.exact * up)

    def _norm(self, x: Value) -> Value:
        gain = self._input((x.width,))
        mean = (x.exact**2).mean(-1, keepdims=True)
        exact = x.exact / np.sqrt(mean + 1e-3) * gain.exact
        return self._do(lambda: op.nn.rms_norm(x.made, gain.made, axes=[-1], epsilon=1e-3), exact)

    def _residual(self, x: Value) -> Value | None:
        fits = [v for v in self.values[:-1] if v.width == x.width]
        if not fits:
            return None
        other = fits[int(self.rng.integers(len(fits)))]
        return self._do(lambda: op.add(x.made, other.made), x.exact + other.exact)

    def _activation(self, x: Value) -> Value:
        return self._do(lambda: op.tanh(x.made), np.tanh(x.exact))

    def _biased(self, x: Value) -> Value:
        bias = self._input((x.width,))
        return self._do(lambda: op.add(x.made, bias.made), x.exact + bias.exact)

    def _turned(self, x: Value) -> Value:
        """Turn pairs of elements of heads of eight, as rotary embeddings do."""
        heads, angle = x.width // 8, 0.3
        shape = (1, self.rows, heads, 8)
        wide = self._do(lambda: op.reshape(x.made, shape), x.exact.reshape(shape))
        halves = None if self.dry else self.emit(op.split(wide.made, 2, axis=-1))
        first, second = wide.exact[..., :4], wide.exact[..., 4:]
        c, s = (np.asarray(f(angle)).astype(self.dtype) for f in (np.cos, np.sin))
        exact = np.concatenate(
            [first * float(c) - second * float(s), second * float(c) + first * float(s)], -1
        ).reshape(x.exact.shape)

        def made() -> Any:
            by = [relax.const(each, self.dtype) for each in (c, s)]
            a = op.subtract(op.multiply(halves[0], by[0]), op.multiply(halves[1], by[1]))
            b = op.add(op.multiply(halves[1], by[0]), op.multiply(halves[0], by[1]))
            return op.reshape(op.concat([a, b], axis=-1), (1, self.rows, x.width))

        return self._do(made, exact)
