# SPDX-License-Identifier: Apache-2.0
"""Marks that give every variable of a module a name of its own, which passes keep.

Importers number variables ``lv``, ``lv1``..., and passes number theirs in the same way, each from the beginning. So a
name may belong to several variables of a module, and to other ones behind the next pass. A mark has a number that no
other variable of the compilation gets. It ends in no digit, because TVM numbers names anew that do.

``explain`` marks the model's variables, and in front of each pass the variables that the pass before has added.
Reports remove the marks.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...support.interrupts import carrying
from ...support.module_pass import module_pass
from .functions import own_functions
from .values import bindings_of

JOINED = "__and__"
_MARK = r"__value\d+__"
_MARKED = re.compile(rf".*{_MARK}(\[\d+\])?")
_NUMBERED = re.compile(rf"({_MARK})\d+$")
_LAST = re.compile(rf"{_MARK}$")
_Data = TypeVar("_Data")


def marked(name: str, number: int) -> str:
    """Return a variable's name with the mark of a number."""
    return f"{name}__value{number}__"


def is_fresh(name: str) -> bool:
    """Return True if a name, or that of one result of several such as ``lv[1]``, does not end in a mark."""
    return _MARKED.fullmatch(name) is None


def whole_of(name: str) -> str:
    """Return the name without its last mark. It is marked too if a pass has made a part or a view of a value."""
    return _LAST.sub("", name)


def joined(names: Iterable[str]) -> str:
    """Return the name of one value for several of a model's values. Parameters of kernels in C may have it."""
    return JOINED.join(names)


def parts(name: str) -> list[str]:
    """Return the names of a model's values in a name of :func:`joined`, or the name itself if it was not joined."""
    return name.split(JOINED)


@module_pass
class MarkedNames:
    """Mark the variables whose names have no mark yet, and those whose marked name a later variable has too.

    A pass may bind a part of a value under the name of the value. TVM then adds a digit to the name of the second
    variable. The last variable of a name, with a digit or without, is the value itself and gets the name. One instance
    never gives a number twice.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the variables marked, or the module itself if all are."""
        result = mod
        for gvar, func in own_functions(mod):
            variables = [binding.var for binding in bindings_of(func.body)]
            before = [str(var.name) for var in variables]
            names = [_NUMBERED.sub(r"\1", name) for name in before]
            last = {name: i for i, name in enumerate(names)}
            after = [
                marked(name, next(self._numbers)) if is_fresh(name) or last[name] != i else name
                for i, name in enumerate(names)
            ]
            new = {var: name for var, name, old in zip(variables, after, before) if name != old}
            if new:
                result = mod.clone() if result.same_as(mod) else result
                result.update_func(gvar, _Renamed(new).visit_expr(func))
        return result


def unmarked(data: _Data) -> _Data:
    """Return a text, or data that holds texts, without the marks.

    Keys of a dictionary that differ by their marks alone get numbers.
    """
    plain: Any = data
    if isinstance(data, str):
        plain = re.sub(_MARK, "", data)
    elif isinstance(data, dict):
        plain = {}
        for key, value in data.items():
            plain[_free(unmarked(key), plain)] = unmarked(value)
    elif isinstance(data, (list, tuple)):
        plain = type(data)(unmarked(value) for value in data)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {f.name: unmarked(getattr(data, f.name)) for f in dataclasses.fields(data)}
        plain = dataclasses.replace(data, **fields)
    return plain


def _free(key: Any, taken: dict[Any, Any]) -> Any:
    numbered: Iterator[Any] = (f"{key} ({number})" for number in itertools.count(2))
    return key if key not in taken else next(each for each in numbered if each not in taken)


@mutator
class _Renamed(PyExprMutator):
    """Renames the variables that a function binds. ``names`` are the new names."""

    def __init__(self, names: Mapping[relax.Var, str]):
        super().__init__()
        self.names = names

    @carrying
    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return relax.Var(self.names[var], var.ty, var.span) if var in self.names else var

    @carrying
    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return relax.DataflowVar(self.names[var], var.ty, var.span) if var in self.names else var
