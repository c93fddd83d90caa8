# SPDX-License-Identifier: Apache-2.0
"""Loops as private functions that halve the number of steps.

Relax has no loop. A function that calls itself once for each step needs stack memory for each step: TVM's virtual
machine died between 300 and 3,000 steps. Here a function of ``n`` steps runs the first half of the steps, then the
second half. The depth of calls is the logarithm of ``n``: 17 for 100,000 steps. The step is a function of its own,
compiled once. Its arguments are the states and the values that do not change. Step numbers are on the host.

Few steps whose number is known are written one after the other.

A loop with a condition carries it as its first state. The second half runs only if the first half ended with a true
condition. So the host reads a condition once after each step, and at most 62 times more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ... import compat
from ...cost.choices import Choices
from .functions import branch, declared, function_of, private_function, symbols_of
from .invariants import hoisted

Step = Callable[[Any, list[Any], list[Any]], Sequence[Any]]
"""Emits a step, from its number, the unchanging values and the states. It returns the next states."""


class ChangingState(ValueError):
    """A state of a loop changes its shape or type from step to step."""


def loop(
    builder: relax.BlockBuilder,
    name: str,
    count: Any,
    state: Sequence[relax.Expr],
    unchanging: Sequence[relax.Expr],
    step: Step,
    conditional: bool = False,
    sizes: Sequence[Any] = (),
) -> list[relax.Expr]:
    """Emit a loop and return the states behind it.

    Args:
        builder: the builder of the surrounding function.
        name: the first choice of a name for the loop's functions.
        count: number of steps, an int or an int64 expression of variables of the surrounding function. None for a
            loop that only its condition ends.
        state: the states before the first step. Their shapes do not change.
        unchanging: values that all steps read. Constants are read by the step without being passed.
        step: emits a step in a dataflow block.
        conditional: whether the loop ends once its first state, a bool tensor without axes, is false.
        sizes: variables of shapes that a step uses, in addition to those of its arguments.

    Raises:
        ChangingState: if a step returns a state of another type.
    """
    count = 2**62 if count is None else count
    known = count if isinstance(count, int) else compat.int_value(count)
    if known is not None and known <= 0:
        return list(state)
    state = [_variable(builder, each) for each in state]
    choices = Choices()
    if known is not None and known <= choices.unrolled_steps and not conditional:
        for number in range(known):
            after = step(_number(number), list(unchanging), state)
            state = _checked(builder, name, state, [_variable(builder, each) for each in after])
        return state
    passed = [each for each in unchanging if not isinstance(each, tvm.ir.GenericConst)]
    types = [each.ty for each in (*passed, *state)]
    symbols = list(dict.fromkeys([*symbols_of(types), *sizes]))
    result = tvm.ir.TupleType([each.ty for each in state])

    def params(*numbers: Any) -> list[relax.Var]:
        shape = relax.Var("at", relax.ShapeType([*numbers, *symbols]))
        return [shape, *(relax.Var(f"v{i}", ty) for i, ty in enumerate(types))]

    def call(function: Any, numbers: Sequence[Any], states: Sequence[Any], others: Sequence[Any]) -> Any:
        at = relax.ShapeExpr([*map(_number, numbers), *symbols])
        return relax.Call(function, [at, *others, *states])

    def parts(given: Sequence[relax.Var]) -> tuple[list[Any], list[Any]]:
        return list(given[1 : 1 + len(passed)]), list(given[1 + len(passed) :])

    first, steps = tirx.Var("first", "int64"), tirx.Var("steps", "int64")

    def one(given: list[relax.Var]) -> Any:
        others, states = parts(given)
        left = iter(others)
        values = [e if isinstance(e, tvm.ir.GenericConst) else next(left) for e in unchanging]
        after = [_variable(builder, each) for each in step(first, values, states)]
        return _checked(builder, name, states, after)

    whole = function_of(builder, params(first), one)
    moved, left = hoisted(whole, len(passed))
    body = builder.add_func(left, f"{name}_step")
    if moved is not None:
        before = builder.add_func(moved, f"{name}_before")
        fixed = builder.emit(call(before, [], [], passed))
        passed += [builder.emit(relax.TupleGetItem(fixed, i)) for i in range(len(fixed.ty.fields))]
        types = [each.ty for each in (*passed, *state)]
    halves = declared(builder, f"{name}_loop", params(first, steps), result)

    def both(given: list[relax.Var]) -> Any:
        others, states = parts(given)

        def rest(before: Any) -> Any:
            middle = [builder.emit(relax.TupleGetItem(before, i)) for i in range(len(states))]
            half = tirx.floordiv(steps, _number(2))
            return builder.emit(call(halves, [first + half, steps - half], middle, others))

        def several() -> Any:
            half = builder.emit(call(halves, [first, tirx.floordiv(steps, _number(2))], states, others))
            if not conditional:
                return rest(half)
            goes_on = builder.emit(relax.TupleGetItem(half, 0))
            then = branch(builder, lambda: rest(half))
            return builder.emit(relax.If(goes_on, then, branch(builder, lambda: half)))

        single = branch(builder, lambda: builder.emit(call(body, [first], states, others)))
        more = branch(builder, several)
        return builder.emit(relax.If(tirx.LE(steps, _number(1)), single, more))

    private_function(builder, "", params(first, steps), both, straight=False, known=halves, result=result)

    def entry(given: list[relax.Var]) -> Any:
        others, states = parts(given)

        def none() -> Any:
            return builder.emit(relax.Tuple(states))

        def some() -> Any:
            return builder.emit(call(halves, [0, steps], states, others))

        if not conditional:
            return builder.emit(
                relax.If(tirx.LE(steps, _number(0)), branch(builder, none), branch(builder, some))
            )
        run = branch(
            builder,
            lambda: builder.emit(relax.If(states[0], branch(builder, some), branch(builder, none))),
        )
        return builder.emit(relax.If(tirx.LE(steps, _number(0)), branch(builder, none), run))

    start = private_function(builder, name, params(steps), entry, straight=False, result=result)
    done = builder.emit(call(start, [count], state, passed))
    return [builder.emit(relax.TupleGetItem(done, i)) for i in range(len(state))]


def _number(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value


def _variable(builder: relax.BlockBuilder, value: Any) -> Any:
    return value if isinstance(value, relax.Var) else builder.emit(value)


def _checked(
    builder: relax.BlockBuilder, name: str, before: Sequence[Any], after: Sequence[Any]
) -> list[Any]:
    """Return the states after a step.

    Raises:
        ChangingState: unless they have the types of those before.
    """
    if len(before) != len(after):
        raise ChangingState(f"the step of {name} returns {len(after)} states and takes {len(before)}")
    return [
        _kept(builder, name, number, old, new)
        for number, (old, new) in enumerate(zip(before, after, strict=True))
    ]


def _kept(builder: relax.BlockBuilder, name: str, number: int, old: Any, new: Any) -> Any:
    """Return a state in the type that it had before. Shapes that are not known yet are checked when the model runs."""
    if tvm_ffi.structural_equal(old.ty, new.ty):
        return new
    if _may_be_equal(old.ty, new.ty):
        return builder.match_cast(new, old.ty)
    raise ChangingState(
        f"state {number} of {name} is {text_of(old.ty)} before a step and {text_of(new.ty)} behind it; "
        "the states of a compiled loop keep their shapes and types"
    )


def _may_be_equal(old: Any, new: Any) -> bool:
    """Return True if two types of tensors are equal, or if only a run shows the shape of the second."""
    if not (isinstance(old, relax.TensorType) and isinstance(new, relax.TensorType)):
        return False
    if str(old.dtype) != str(new.dtype) or new.ndim not in (-1, old.ndim):
        return False
    if not isinstance(new.shape, relax.ShapeExpr):
        return True
    analyzer = compat.Analyzer()
    return all(
        analyzer.can_prove_equal(a, b) for a, b in zip(old.shape.values, new.shape.values, strict=True)
    )


def text_of(ty: Any) -> str:
    """Return a type in words, such as ``float32 [2, n]``."""
    if not isinstance(ty, relax.TensorType):
        return str(ty)
    shape = ty.shape
    sizes = ", ".join(map(str, shape.values)) if isinstance(shape, relax.ShapeExpr) else "?"
    return f"{ty.dtype} [{sizes}]"
