# SPDX-License-Identifier: Apache-2.0
"""The values of a Relax function by the operators that they call, read once for all passes that leave it as it is.

Most passes look for operators that a module does not have, and change nothing. They ask the same question of the same
function, and for large graphs the answer takes longer than anything else that they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from tvm import relax

Contents = Mapping[str, Sequence[relax.Expr]]
"""The values that variables of a function are bound to, by operator. Values that call no operator are under ""."""

MOST_REMEMBERED = 4
"""Most functions whose contents are kept. A pass visits all functions of a module, and few modules have more."""

_remembered: ContextVar[list[tuple[relax.Function, Contents]] | None] = ContextVar("remembered", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Keep the contents of the latest functions while this context is open, and no longer: they hold weights."""
    token = _remembered.set([])
    try:
        yield
    finally:
        _remembered.reset(token)


def contents_of(func: relax.Function) -> Contents:
    """Return the values of a function by the names of the operators that they call."""
    remembered = _remembered.get()
    if remembered is None:
        return _read(func)
    for known, contents in remembered:
        if known.same_as(func):
            return contents
    contents = _read(func)
    remembered.insert(0, (func, contents))
    del remembered[MOST_REMEMBERED:]
    return contents


def _read(func: relax.Function) -> Contents:
    by_operator: dict[object, list[relax.Expr]] = {}
    for value in relax.analysis.get_var2val(func).values():
        by_operator.setdefault(getattr(value, "op", None), []).append(value)
    calls: dict[str, list[relax.Expr]] = {}
    for operator, values in by_operator.items():
        calls.setdefault(str(getattr(operator, "name", "")), []).extend(values)
    return calls
