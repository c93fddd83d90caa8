# SPDX-License-Identifier: Apache-2.0
"""A case as plain data: inputs, steps, outputs, sizes to run at. It can be written as JSON and read unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Dim = int | str
"""An extent: a number, or an expression of symbols such as ``"(n + 1) // 2"`` in Python's operators, min and max."""


DIM_ATTRS = ("shape", "begin", "end", "sections")
"""Names of the attributes of steps that hold extents."""


class Inapplicable(Exception):
    """The case means nothing at these sizes, such as a slice that begins behind the end."""


@dataclass(frozen=True)
class Input:
    """A parameter: extents, dtype, what to fill it with (a name of :mod:`fuzzing.data`), and a seed of its own."""

    shape: tuple[Dim, ...]
    dtype: str
    fill: str = "normal"
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One operator applied to earlier values. Values are numbered: inputs first, then steps in order."""

    op: str
    args: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A Relax function and how to run it.

    outputs: values that are returned, repeats allowed. A single one is returned as itself unless ``as_tuple``.
    cuts: steps at which a new dataflow block begins. ``plain`` leaves dataflow blocks out altogether.
    inner: first and last step (exclusive) of the steps in a private function, if any.
    sizes: of the symbols, one mapping for each run.
    config: options of StitchConfig. target: overrides the backend's.
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    as_tuple: bool = False
    cuts: tuple[int, ...] = ()
    plain: bool = False
    inner: tuple[int, int] | None = None
    sizes: tuple[Mapping[str, int], ...] = ({},)
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
    note: str = ""

    @property
    def symbols(self) -> list[str]:
        """Return the names of the symbolic extents, in order of their appearance."""
        names: dict[str, None] = {}
        for parameter in self.inputs:
            for dim in parameter.shape:
                names.update(dict.fromkeys(symbols_of(dim)))
        return list(names)

    def to_json(self) -> str:
        """Write one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Case:
        """Read a case that :meth:`to_json` wrote."""
        data = json.loads(text)
        return Case(
            inputs=tuple(Input(tuple(i["shape"]), i["dtype"], i["fill"], i["seed"]) for i in data["inputs"]),
            steps=tuple(Step(s["op"], tuple(s["args"]), s["attrs"]) for s in data["steps"]),
            outputs=tuple(data["outputs"]),
            as_tuple=data.get("as_tuple", False),
            cuts=tuple(data.get("cuts", ())),
            plain=data.get("plain", False),
            inner=tuple(data["inner"]) if data.get("inner") else None,
            sizes=tuple(data.get("sizes", ({},))),
            seed=data.get("seed", 0),
            config=data.get("config", {}),
            target=data.get("target"),
            note=data.get("note", ""),
        )

    def but(self, **changes: Any) -> Case:
        """Return the case with some fields changed."""
        return replace(self, **changes)


def symbols_of(dim: Dim) -> list[str]:
    """Return the symbols in an extent."""
    return (
        []
        if isinstance(dim, int)
        else [w for w in re.findall(r"[A-Za-z_]\w*", dim) if w not in ("min", "max")]
    )


def extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent.

    Raises:
        Inapplicable: when it is negative or divides by zero.
    """
    if isinstance(dim, int):
        value = dim
    else:
        try:
            value = int(evaluate(dim, {**sizes, "min": min, "max": max}))
        except ZeroDivisionError as error:
            raise Inapplicable(f"{dim} divides by zero") from error
    if value < 0:
        raise Inapplicable(f"{dim} is {value}")
    return value


def evaluate(dim: Dim, names: Mapping[str, Any]) -> Any:
    """Evaluate an extent with the values of names: numbers, or TIR variables."""
    if isinstance(dim, int):
        return dim
    return eval(dim, {"__builtins__": {}}, dict(names))


def map_dims(value: Any, function: Callable[[Dim], Dim]) -> Any:
    """Applies ``function`` to an extent or to each of a list of extents."""
    if isinstance(value, (list, tuple)):
        return [map_dims(part, function) for part in value]
    return function(value)


def pruned(case: Case) -> Case:
    """Drop steps and inputs that no output needs. Inputs that give symbols their sizes remain."""
    first = len(case.inputs)
    needed = set(case.outputs)
    for index in range(len(case.steps) - 1, -1, -1):
        if first + index in needed:
            needed.update(case.steps[index].args)
    used = {s for i, p in enumerate(case.inputs) if i in needed for d in p.shape for s in symbols_of(d)}
    used |= {s for i, step in enumerate(case.steps) if first + i in needed for s in _symbols_of_step(step)}
    plain = {d for i, p in enumerate(case.inputs) if i in needed for d in p.shape if isinstance(d, str)}
    for index, part in enumerate(case.inputs):
        if index not in needed and any(d in used and d not in plain for d in part.shape):
            needed.add(index)
            plain.update(d for d in part.shape if isinstance(d, str))
    keep = [v for v in range(first + len(case.steps)) if v in needed]
    return _kept(case, keep)


def _symbols_of_step(step: Step) -> set[str]:
    names: set[str] = set()
    for name in DIM_ATTRS:
        if name in step.attrs:
            map_dims(step.attrs[name], lambda d: names.update(symbols_of(d)) or d)  # type: ignore[func-returns-value]
    return names


def _kept(case: Case, keep: list[int]) -> Case:
    """Return the case with only those values, renumbered. References to others are dropped."""
    first = len(case.inputs)
    number = {old: new for new, old in enumerate(keep)}
    inputs = tuple(case.inputs[i] for i in keep if i < first)
    steps = tuple(
        Step(s.op, tuple(number[a] for a in s.args), s.attrs)
        for s in (case.steps[i - first] for i in keep if i >= first)
    )
    outputs = tuple(number[o] for o in case.outputs)
    changed = len(steps) != len(case.steps)
    return case.but(
        inputs=inputs,
        steps=steps,
        outputs=outputs,
        cuts=() if changed else case.cuts,
        inner=None if changed else case.inner,
    )
