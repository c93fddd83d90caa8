# SPDX-License-Identifier: Apache-2.0
"""Loops that read a row of some tensors in each step, and stack a result of each step to a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.relax import op as R

from .functions import types_of
from .loop import ChangingState, loop, text_of
from .rows import empty, row, scalar, with_row

ScanStep = Callable[[Any, list[Any], list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]]
"""Emits a step, from its number, the rows, the unchanging values and the states. It returns the next states and the
results of the step."""


def scan(
    builder: relax.BlockBuilder,
    name: str,
    count: Any,
    state: Sequence[relax.Expr],
    sequences: Sequence[relax.Expr],
    unchanging: Sequence[relax.Expr],
    step: ScanStep,
    conditional: bool = False,
    sizes: Sequence[Any] = (),
    backwards: Sequence[bool] = (),
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """Emit a loop over rows and return the states behind it, and the stacked results.

    Args:
        builder, name, state, unchanging, conditional, sizes: as for :func:`~.loop.loop`.
        count: the number of steps, which is at most the number of rows.
        sequences: tensors with a row for each step.
        step: emits a step in a dataflow block.
        backwards: for each sequence, and then for each result, whether its last row belongs to the first step.

    Raises:
        ChangingState: if a step returns states of other types, or results of unknown shapes.
    """
    count = tirx.const(count, "int64") if isinstance(count, int) else count
    order = [*backwards, *([False] * 64)]
    turned = [order[at] for at in range(len(sequences))]

    def rows(number: Any, given: Sequence[Any]) -> list[Any]:
        return [
            row(builder, x, _position(count, number, back)) for x, back in zip(given, turned, strict=True)
        ]

    first = tirx.const(0, "int64")
    results = types_of(builder, lambda: step(first, rows(first, sequences), list(unchanging), list(state))[1])
    for at, ty in enumerate(results):
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise ChangingState(
                f"result {at} of a step of {name} is {text_of(ty)}; a stacked result needs a known shape"
            )
    buffers = [empty(builder, [count, *ty.shape.values], str(ty.dtype.dtype)) for ty in results]
    back = order[len(sequences) : len(sequences) + len(buffers)]
    done = [scalar(builder, first)] if conditional and buffers else []
    of_step = len(sequences)

    def one(number: Any, values: list[Any], states: list[Any]) -> list[Any]:
        own = states[: len(state)]
        after, made = step(number, rows(number, values[:of_step]), values[of_step:], own)
        stacked = [
            with_row(builder, buffer, value, _position(count, number, turn))
            for buffer, value, turn in zip(states[len(state) + len(done) :], made, back, strict=True)
        ]
        counted = [scalar(builder, number + tirx.const(1, "int64"))] if done else []
        return [*after, *counted, *stacked]

    behind = loop(
        builder, name, count, [*state, *done, *buffers], [*sequences, *unchanging], one, conditional, sizes
    )
    states, stacked = behind[: len(state)], behind[len(state) + len(done) :]
    if done:
        steps = host_number(builder, behind[len(state)], "steps")
        stacked = [builder.emit(R.strided_slice(y, [0], [0], [steps])) for y in stacked]
    return states, stacked


def host_number(builder: relax.BlockBuilder, x: relax.Expr, name: str) -> tirx.Var:
    """Emit the transfer of an int64 tensor of one element to the host, and return its variable.

    A negative number becomes 0.
    """
    one = builder.emit(R.reshape(R.maximum(x, relax.const(0, "int64")), [1]))
    number = tirx.Var(name, "int64")
    builder.match_cast(builder.emit(R.tensor_to_shape(one)), relax.ShapeType([number]))
    return number


def _position(count: Any, number: Any, backwards: bool) -> Any:
    return count - tirx.const(1, "int64") - number if backwards else number
