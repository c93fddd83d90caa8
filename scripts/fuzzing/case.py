# SPDX-License-Identifier: Apache-2.0
"""A case as plain data: inputs, steps, outputs, sizes to run at. It goes to JSON and back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Dim = int | str
"""An extent: a number, or an expression of symbols such as ``"(n + 1) // 2"`` in Python's operators, min and max."""


class Inapplicable(Exception):
    """The case means nothing at these sizes, such as a slice that begins behind the end."""


@dataclass(frozen=True)
class Input:
    """A parameter: extents, dtype and what to fill it with (a name of :mod:`fuzzing.data`)."""

    shape: tuple[Dim, ...]
    dtype: str
    fill: str = "normal"


@dataclass(frozen=True)
class Step:
    """One operator applied to earlier values. Values are numbered: inputs first, then steps in order."""

    op: str
    args: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A Relax function and how to run it.

    outputs: values that are returned, repeats allowed; a single one as itself unless ``as_tuple``.
    cuts: steps at which a new dataflow block begins; ``plain`` leaves dataflow blocks out altogether.
    inner: first and last step (exclusive) of a part that stands in a private function, if any.
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
        """Names of the symbolic extents, in order of their appearance."""
        found: dict[str, None] = {}
        for parameter in self.inputs:
            for dim in parameter.shape:
                found.update(dict.fromkeys(symbols_of(dim)))
        return list(found)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Case:
        """The case that :meth:`to_json` wrote."""
        data = json.loads(text)
        return Case(
            inputs=tuple(Input(tuple(i["shape"]), i["dtype"], i["fill"]) for i in data["inputs"]),
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
        """The case with some fields changed."""
        return replace(self, **changes)


def symbols_of(dim: Dim) -> list[str]:
    """The symbols in an extent."""
    return (
        []
        if isinstance(dim, int)
        else [w for w in re.findall(r"[A-Za-z_]\w*", dim) if w not in ("min", "max")]
    )


def extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The number an extent stands for.

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
    """An extent over whatever the names stand for: numbers, or TIR variables."""
    if isinstance(dim, int):
        return dim
    return eval(dim, {"__builtins__": {}}, dict(names))  # noqa: S307 - text of our own making


def map_dims(value: Any, function: Callable[[Dim], Dim]) -> Any:
    """Applies ``function`` to an extent or to each of a list of extents."""
    if isinstance(value, (list, tuple)):
        return [map_dims(part, function) for part in value]
    return function(value)
