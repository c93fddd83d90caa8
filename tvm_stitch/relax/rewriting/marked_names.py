# SPDX-License-Identifier: Apache-2.0
"""Marks that keep the names of a model's variables recognisable through passes.

Passes number their variables ``lv``, ``lv1``... anew, and importers number variables in the same way. So the model's
variables are marked before the passes, and reports remove the marks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...support.interrupts import carrying
from .functions import with_own_functions

MARK = "_of_model"
JOINED = "__and__"
_NUMBERED = re.compile(r"(lv|gv)\d*")
_Data = TypeVar("_Data")


def marked(name: str) -> str:
    """Return a variable's name in the result of :func:`with_marked_names`."""
    return f"{name}{MARK}" if _NUMBERED.fullmatch(name) else name


def is_fresh(name: str) -> bool:
    """Return True if a name is a number that a pass has given."""
    return bool(_NUMBERED.fullmatch(name))


def joined(names: Iterable[str]) -> str:
    """Return the name of one value for several of a model's values. Parameters of kernels in C may have it."""
    return JOINED.join(names)


def parts(name: str) -> list[str]:
    """Return the names of a model's values in a name of :func:`joined`, or the name itself if it was not joined."""
    return name.split(JOINED)


def with_marked_names(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its numbered variables marked."""
    return with_own_functions(mod, lambda func: _Marks().visit_expr(func))


def unmarked(data: _Data) -> _Data:
    """Return a text, or data that holds texts, without the marks."""
    plain: Any = data
    if isinstance(data, str):
        plain = data.replace(MARK, "")
    elif isinstance(data, dict):
        plain = {unmarked(key): unmarked(value) for key, value in data.items()}
    elif isinstance(data, (list, tuple)):
        plain = type(data)(unmarked(value) for value in data)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {f.name: unmarked(getattr(data, f.name)) for f in dataclasses.fields(data)}
        plain = dataclasses.replace(data, **fields)
    return plain


@mutator
class _Marks(PyExprMutator):
    @carrying
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        value = self.visit_expr(binding.value)
        dataflow = self.builder_.current_block_is_dataflow()
        is_output = dataflow and not isinstance(var, relax.DataflowVar)
        emit = self.builder_.emit_output if is_output else self.builder_.emit
        self.set_var_remap(var, emit(self.builder_.normalize(value), marked(str(var.name))))
