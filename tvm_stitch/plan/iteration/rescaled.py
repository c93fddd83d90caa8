# SPDX-License-Identifier: Apache-2.0
"""Sums that need not wait for the maximum in their operand: online softmax (Milakov and Gimelshein, 2018).

In ``sum of exp(x - max x) * v`` any bound of x serves for the maximum as long as all slices of the sum use the same
one. A warp sums relative to its own maximum. Its sum is scaled by ``exp(own - whole)`` once the whole row's maximum
is known. So a maximum and such a sum share one barrier of their block, and one exchange among the blocks of a row.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import lru_cache

from ... import compat
from ...compat import Expr
from ...graph.access import branches, loads
from ...graph.dtype import FLOATS
from ...graph.ir import Access, Operator, Tensor
from .alignment import Alignment, Key
from .domain import Point
from .loops import Keep, LoopNest, schedule

Child = tuple[Access, "Point | None"]
WIDE = ("float32", "float64")
"""Dtypes whose casts round nothing that sums or maxima of them would not round as well."""


def rescaled_sums(alignment: Alignment, sched: LoopNest) -> dict[Operator, Operator]:
    """Return the sums that may be taken relative to their warp's maximum, each with the maximum's operator.

    All reductions of a level are among them, or none: the others would still wait. No pass of that level writes or
    keeps its values, which would be relative to the warp's maximum too.
    """
    rescaled: dict[Operator, Operator] = {}
    reduces: dict[int, list[Operator]] = {}
    for p in sched.passes:
        reduces.setdefault(p.level, []).extend(p.reduces)
    for level, sums in reduces.items():
        before = reduces.get(level - 1, [])
        passes = [p for p in sched.passes if p.level == level]
        if not sums or any(op in rescaled for op in before):
            continue
        if any(p.outputs or p.cross_row or sched.kept_values & set(p.values) for p in passes):
            continue
        pairs = {op: _maximum(alignment, op, before) for op in sums}
        if all(pairs.values()):
            rescaled.update((op, maximum) for op, maximum in pairs.items() if maximum is not None)
    return rescaled


@lru_cache(maxsize=16)
def exchanged_levels(alignment: Alignment, sched: LoopNest) -> int:
    """Return how often blocks that share a row exchange their reductions."""
    rescaled = rescaled_sums(alignment, sched)
    return len({p.level for p in sched.passes if any(op not in rescaled for op in p.reduces)})


@lru_cache(maxsize=16)
def with_fewest_exchanges(alignment: Alignment, sched: LoopNest) -> LoopNest:
    """Return the schedule, or one that computes a kept exponential again if its sum can then be rescaled."""
    if len(sched.kept_values) != 1 or exchanged_levels(alignment, sched) < 2:
        return sched
    loads = schedule(alignment, Keep.LOADS)
    return loads if exchanged_levels(alignment, loads) < exchanged_levels(alignment, sched) else sched


def _maximum(alignment: Alignment, op: Operator, before: list[Operator]) -> Operator | None:
    """Return the one reduction of the level before that a sum reads, if the sum may be rescaled by it."""
    if op.combiner != "sum" or op.output.dtype not in FLOATS:
        return None
    key = next(k for k in alignment.roots if k[0] is op)
    for maximum in before:
        if maximum.combiner == "max" and maximum.output.dtype in FLOATS:
            others = [other for other in before if other is not maximum]
            if _Reader(alignment, maximum, others).form(key) is _Form.SCALED:
                return maximum
    return None


class _Form(enum.Enum):
    """The form in which a value depends on the maximum."""

    FREE = "not at all"
    MAXIMUM = "it is the maximum"
    OPERAND = "not at all: it is what the maximum is taken of"
    SHIFTED = "what the maximum is taken of, less the maximum"
    SCALED = "proportional to exp(-maximum)"
    OTHER = "in another way, or on another reduction of its level"


_FREE = (_Form.FREE, _Form.OPERAND)


class _Reader:
    def __init__(self, alignment: Alignment, maximum: Operator, others: list[Operator]):
        self.al, self.maximum, self.others = alignment, maximum, others
        self.own = set(alignment.graph.operators)
        self.known: dict[Key, _Form] = {}
        root = next(k for k in alignment.roots if k[0] is maximum)
        children = alignment.children(root)
        plain = compat.is_load(_uncast(maximum.value)) and len(children) == 1
        self.operand = self._source(children[0]) if plain else None

    def _source(self, child: Child) -> tuple[Tensor, Point] | None:
        """Return the tensor and point that are read, below casts: each reader may have its own cast."""
        access, point = child
        producer = access.tensor.producer
        if point is None:
            return None
        if producer is not None and producer in self.own and compat.is_load(_uncast(producer.value)):
            below = self.al.children((producer, point)) if not producer.is_reduce else ()
            if len(below) == 1 and (source := self._source(below[0])) is not None:
                return source
        return access.tensor, point

    def form(self, key: Key) -> _Form:
        if key not in self.known:
            self.known[key] = self._of(key[0].value, iter(self.al.children(key)))
        return self.known[key]

    def _of(self, e: Expr, children: Iterator[Child]) -> _Form:
        if compat.is_load(e):
            return self._load(e, children)
        chosen = branches(e)
        if chosen is not None:
            condition, *values = (self._of(part, children) for part in chosen)
            return _Form.OTHER if condition not in _FREE else _either(values)
        parts = list(compat.operands(e))
        forms = [self._of(part, children) for part in parts]
        if all(f in _FREE for f in forms):
            return forms[0] if compat.kind(e) == "Cast" and compat.dtype_of(e) in WIDE else _Form.FREE
        return _operation(e, parts, forms)

    def _load(self, e: Expr, children: Iterator[Child]) -> _Form:
        access, point = next(children)
        if point is None:  # a gather of data: its indices are values
            forms = [self._of(i, children) for i in compat.elements(e.indices)]
            return _Form.FREE if all(f in _FREE for f in forms) else _Form.OTHER
        for _ in range(sum(1 for i in compat.elements(e.indices) for _ in loads(i))):
            next(children)  # the reads in a gather's indices are in the point itself
        producer = access.tensor.producer
        if (access.tensor, point) == self.operand:
            return _Form.OPERAND
        if producer is None or producer not in self.own or producer.is_reduce:
            if producer is self.maximum:
                return _Form.MAXIMUM
            return _Form.OTHER if producer in self.others else _Form.FREE
        return self.form((producer, point))


def _operation(e: Expr, parts: list[Expr], forms: list[_Form]) -> _Form:
    """Return the form of an operation of which an operand depends on the maximum."""
    name, dtype = compat.kind(e), compat.dtype_of(e)
    if name == "Cast":
        return forms[0] if dtype in WIDE else _Form.OTHER
    if name == "Sub" and forms == [_Form.OPERAND, _Form.MAXIMUM]:
        return _Form.SHIFTED
    if name == "Call" and compat.call_name(e) == "exp" and forms == [_Form.SHIFTED]:
        return _Form.SCALED
    if name in ("Mul", "Div") and forms[0] is _Form.SCALED and forms[1] in _FREE:
        return _Form.SCALED
    if name == "Mul" and forms[1] is _Form.SCALED and forms[0] in _FREE:
        return _Form.SCALED
    if name == "Select" and forms[0] in _FREE:
        return _either(forms[1:])
    return _Form.OTHER


def _either(forms: list[_Form]) -> _Form:
    """Return the form of one of two values, chosen by a condition that does not depend on the maximum."""
    if all(form in _FREE for form in forms):
        return _Form.FREE
    return _Form.SCALED if all(form is _Form.SCALED for form in forms) else _Form.OTHER


def _uncast(e: Expr) -> Expr:
    """Return a value without casts that lose nothing."""
    while compat.kind(e) == "Cast" and compat.dtype_of(e) in WIDE:
        e = e.value
    return e
