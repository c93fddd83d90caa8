# SPDX-License-Identifier: Apache-2.0
"""Shrink a failing case: leave out and simplify parts while it fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .build import Unbuildable, build_values
from .case import DIM_ATTRS, Case, Dim, Input, Step, map_dims, pruned, symbols_of
from .execute import Outcome, Settings
from .workers import Work, Worker


def shrink(
    case: Case, outcome: Outcome, settings: Settings, worker: Worker, timeout: float, budget: float
) -> tuple[Case, Outcome]:
    """Return the smallest case found within ``budget`` seconds, and its outcome."""
    end = time.monotonic() + budget
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for candidate in candidates(case, outcome):
            if time.monotonic() > end:
                break
            smaller = worker.ask(Work(settings, candidate), timeout).outcome
            if smaller.kind == outcome.kind and _alike(smaller.detail, outcome.detail):
                case, outcome, progress = candidate, smaller, True
                break
    return case, outcome


def _alike(a: str, b: str) -> bool:
    """Return whether two outcomes are alike: errors of one type, or wrong values of any kind."""
    kinds = [
        re.findall(r"\w+Error|race|divergent|uninitialized|unwritten|out-of-bounds", text)[:1]
        for text in (a, b)
    ]
    return kinds[0] == kinds[1]


def candidates(case: Case, outcome: Outcome) -> Iterator[Case]:
    """Yield simpler cases, the boldest first. Each is well-formed, but Relax may refuse it."""
    if len(case.sizes) > 1:
        order = [outcome.run] if outcome.run >= 0 else range(len(case.sizes))
        yield from (case.but(sizes=(case.sizes[i],)) for i in order)
    yield from _plainer(case)
    yield from _fewer_outputs(case)
    yield from _cut_steps(case)
    yield from _fewer_sizes(case)
    yield from _static(case)
    yield from _smaller_extents(case)
    yield from _simpler_fills(case)
    yield from _simpler_dtypes(case)


def _plainer(case: Case) -> Iterator[Case]:
    if case.config:
        yield case.but(config={})
    if case.target is not None:
        yield case.but(target=None)
    if case.inner:
        yield case.but(inner=None)
    if case.cuts:
        yield case.but(cuts=())
    if case.plain:
        yield case.but(plain=False)
    if case.as_tuple and len(case.outputs) == 1:
        yield case.but(as_tuple=False)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    if len(case.outputs) > 1:
        for output in case.outputs:
            yield pruned(case.but(outputs=(output,)))
        for index in range(len(case.outputs)):
            yield pruned(case.but(outputs=case.outputs[:index] + case.outputs[index + 1 :]))
    first = len(case.inputs)
    for output in case.outputs:  # an earlier value instead
        if output >= first:
            for arg in case.steps[output - first].args:
                if arg >= first:
                    outputs = tuple(arg if o == output else o for o in case.outputs)
                    yield pruned(case.but(outputs=outputs))


def _cut_steps(case: Case) -> Iterator[Case]:
    """Replace a step by an input of its shape, or by one of its arguments."""
    first = len(case.inputs)
    try:
        values = build_values(case, len(case.steps))
    except Unbuildable:
        return
    for index in range(len(case.steps) - 1, -1, -1):
        number = first + index
        shape, dtype = values[number]
        for arg in case.steps[index].args:
            if values[arg] == values[number]:
                yield pruned(_replaced(case, number, arg))
        if dtype == "tuple" or number in case.outputs:
            continue
        fresh = 1 + max([100, *[p.seed for p in case.inputs]])
        fill = "small" if dtype not in ("float32", "float16", "float64", "bfloat16") else "normal"
        for how in dict.fromkeys([fill, case.inputs[0].fill if case.inputs else fill, "special"]):
            if not how.startswith("index"):
                yield pruned(_promoted(case, index, Input(tuple(shape), dtype, how, fresh)))


def _replaced(case: Case, number: int, by: int) -> Case:
    def swap(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(by if v == number else v for v in values)

    steps = tuple(Step(s.op, swap(s.args), s.attrs) for s in case.steps)
    return case.but(steps=steps, outputs=swap(case.outputs))


def _promoted(case: Case, index: int, parameter: Input) -> Case:
    """Make the step's value the last parameter. Later values move up by one."""
    first = len(case.inputs)

    def swap(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(first if v == first + index else v + (v >= first) for v in values)

    steps = tuple(Step(s.op, swap(s.args), s.attrs) for s in case.steps)
    return case.but(
        inputs=(*case.inputs, parameter), steps=steps, outputs=swap(case.outputs), cuts=(), inner=None
    )


def _fewer_sizes(case: Case) -> Iterator[Case]:
    sizes = case.sizes[0]
    for name, value in sizes.items():
        for smaller in dict.fromkeys([0, 1, 2, 3, value // 2, value - 1]):
            if 0 <= smaller < value:
                yield case.but(sizes=({**sizes, name: smaller},))


def _mapped(case: Case, function: Any) -> Case:
    """Return the case with a function applied to every extent."""
    inputs = tuple(replace(p, shape=tuple(map_dims(p.shape, function))) for p in case.inputs)
    steps = tuple(
        Step(s.op, s.args, {k: map_dims(v, function) if k in DIM_ATTRS else v for k, v in s.attrs.items()})
        for s in case.steps
    )
    return case.but(inputs=inputs, steps=steps)


def _static(case: Case) -> Iterator[Case]:
    for name, value in case.sizes[0].items():

        def fixed(dim: Dim, name: str = name, value: int = value) -> Dim:
            if isinstance(dim, int):
                return dim
            text = re.sub(rf"\b{name}\b", str(value), dim)
            return (
                text if symbols_of(text) else int(eval(text, {"__builtins__": {}}, {"min": min, "max": max}))
            )

        yield _mapped(case, fixed).but(sizes=({k: v for k, v in case.sizes[0].items() if k != name},))


def _smaller_extents(case: Case) -> Iterator[Case]:
    extents = {d for p in case.inputs for d in p.shape if isinstance(d, int) and d > 1}
    for step in case.steps:
        if step.op in ("const", "full", "reshape", "broadcast_to"):
            extents |= {d for d in step.attrs["shape"] if isinstance(d, int) and d > 1}
    for whole in sorted(extents, reverse=True):
        for smaller in dict.fromkeys([1, 2, 3, whole // 2, whole - 1]):
            if 0 < smaller < whole:

                def less(dim: Dim, whole: int = whole, smaller: int = smaller) -> Dim:
                    return smaller if dim == whole else dim

                yield _mapped(case, less)
    for index, part in enumerate(case.inputs):  # one axis of one input, or one axis less
        for axis, dim in enumerate(part.shape):
            if dim != 1:
                shape = (*part.shape[:axis], 1, *part.shape[axis + 1 :])
                yield _with_input(case, index, replace(part, shape=shape))
        if len(part.shape) > 1:
            yield _with_input(case, index, replace(part, shape=part.shape[1:]))


def _with_input(case: Case, index: int, part: Input) -> Case:
    return case.but(inputs=(*case.inputs[:index], part, *case.inputs[index + 1 :]))


def _simpler_fills(case: Case) -> Iterator[Case]:
    for index, part in enumerate(case.inputs):
        simple = "normal" if part.dtype in ("float16", "bfloat16", "float32", "float64") else "small"
        if part.fill != simple and not part.fill.startswith("index"):
            yield _with_input(case, index, replace(part, fill=simple))
    for index, step in enumerate(case.steps):
        if step.attrs.get("fill") not in (None, "normal", "small") and not str(step.attrs["fill"]).startswith(
            "index"
        ):
            simple = (
                "normal" if step.attrs["dtype"] in ("float16", "bfloat16", "float32", "float64") else "small"
            )
            changed = Step(step.op, step.args, {**step.attrs, "fill": simple})
            if simple != step.attrs["fill"]:
                yield case.but(steps=(*case.steps[:index], changed, *case.steps[index + 1 :]))


def _simpler_dtypes(case: Case) -> Iterator[Case]:
    for dtype in ("bfloat16", "float16", "float64"):

        def swap(name: Any, dtype: str = dtype) -> Any:
            return "float32" if name == dtype else name

        inputs = tuple(replace(p, dtype=swap(p.dtype)) for p in case.inputs)
        steps = tuple(
            Step(
                s.op, s.args, {**s.attrs, "dtype": swap(s.attrs["dtype"])} if "dtype" in s.attrs else s.attrs
            )
            for s in case.steps
        )
        if inputs != case.inputs or steps != case.steps:
            yield case.but(inputs=inputs, steps=steps)
