# SPDX-License-Identifier: Apache-2.0
"""Weights that kernels compute from packed integers: ``(field - zero) * scale``, a scale for each group of columns.

A *field* is an integer of some bits of a word. The recognition does not depend on how a model writes fields. It runs
the bits of a word through the model's expression. Shifts, masks and conversions are linear over bits, so that the words
of a single bit decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ... import compat
from ...compat import Analyzer, Expr
from ...graph.dtype import HALF, item_bytes
from ...graph.extent import as_expr, flatten
from ...graph.ir import Tensor
from ..iteration.alignment import Alignment, Key
from ..iteration.contiguity import repeated
from ..iteration.domain import Domain
from ..iteration.loops import Leaf
from .factors import (
    LARGEST,
    Unknown,
    as_float32,
    difference_of,
    factors_of,
    is_integer,
    is_small,
    parts_without_loads,
)

MOST_VISITS = 64
"""Visits of operators that a weight is computed by: a bound of time. Dequantizing takes ten."""


@dataclass(frozen=True)
class Place:
    """Elements of a tensor that lie evenly: at ``base + row * stride + column // every``.

    Attributes:
        tensor: the input.
        base: the flat index of the first row's first element.
        stride: the elements from row to row.
        every: the neighbouring columns that read the same element.
    """

    tensor: Tensor
    base: int
    stride: int
    every: int


@dataclass(frozen=True)
class PackedWeight:
    """A weight as ``(field - zero) * scale``, or an element of a tensor.

    Attributes:
        words: the elements that hold the fields, or the weights themselves.
        bits: of a field, 16 for weights of half types.
        signed: whether fields are signed.
        zero: the number that is subtracted from a field.
        group: the neighbouring columns that share all factors of the scale.
        scale: the product of the other factors in the variables of the domain, or None if there are none.
        places: the elements that the scale reads, in order.
        own_zero: an integer that is subtracted from fields as well, and differs between groups, or None.
        zero_places: the elements that it reads, in order.
        zero_group: the neighbouring columns that share it.
    """

    words: Place
    bits: int
    signed: bool = False
    zero: int = 0
    group: int = 0
    scale: Expr | None = field(default=None, repr=False)
    places: tuple[Place, ...] = ()
    own_zero: Expr | None = field(default=None, repr=False)
    zero_places: tuple[Place, ...] = ()
    zero_group: int = 0


@lru_cache(maxsize=64)  # each mapping that is tried asks again
def packed_weight(alignment: Alignment, weight: Key | Leaf, columns: int) -> PackedWeight:
    """Return the form of a weight.

    Args:
        alignment: of the operators.
        weight: an operator or an input, with the point at which a sum reads it.
        columns: of a row.

    Raises:
        Unknown: if the weight has another form.
    """
    reads = _Reads(alignment, columns)
    first, point = weight
    if isinstance(first, Tensor):
        if first.dtype not in HALF:
            raise Unknown(f"weights of {first.dtype}")
        load = compat.load(first.buffer, alignment.domain.input_indices(first.shape, point))
        return PackedWeight(reads.place(first, load), 16)
    value = reads.inlined((first, point))
    factors = list(factors_of(value))
    integers = [each for each in factors if is_integer(each)]
    rounded = [each for each in factors if compat.kind(each) == "Cast" and not is_integer(each)]
    if any(is_integer(each) for cast in rounded for each in factors_of(cast.value)):
        raise Unknown("a weight is rounded before it is multiplied")
    if len(integers) != 1:
        raise Unknown(f"{len(integers)} factors of a weight are integers")
    integer, zero, own_zero = difference_of(integers[0])
    words, bits, signed = reads.fields(integer)
    if not -LARGEST <= -zero - (signed << (bits - 1)) <= (1 << bits) - 1 - zero <= LARGEST:
        raise Unknown(f"{bits}-bit integers less {zero} exceed {LARGEST}")
    packed = PackedWeight(words, bits, signed, zero, columns)
    if own_zero is not None:
        if zero:
            raise Unknown("two zero points")
        packed = reads.with_zero(packed, own_zero)
    others = [each for each in factors if each is not integers[0]]
    if not others:
        return packed
    scale = as_float32(others[0])
    for each in others[1:]:
        scale = scale * as_float32(each)
    places = tuple(reads.place(reads.tensors[compat.load_buffer(e)], e) for e in compat.loads_in(scale))
    if any(p.every == 1 for p in places):
        raise Unknown("every weight has a scale of its own")
    if reads.depends_on_position(scale):
        raise Unknown("a scale depends on more than elements of its group")
    group = min([p.every for p in places], default=columns)
    return replace(packed, group=group, scale=scale, places=places)


def alike(a: Expr, b: Expr) -> bool:
    """Return whether two expressions differ in nothing but the indices of their loads."""
    if compat.kind(a) != compat.kind(b) or compat.dtype_of(a) != compat.dtype_of(b):
        return False
    if compat.is_load(a):
        return bool(compat.load_buffer(a).same_as(compat.load_buffer(b)))
    below, other = compat.operands(a), compat.operands(b)
    if not below and not other:
        return compat.expression_key(a) == compat.expression_key(b)
    if compat.kind(a) == "Call" and compat.call_name(a) != compat.call_name(b):
        return False
    return len(below) == len(other) and all(map(alike, below, other))


def place_of(domain: Domain, tensor: Tensor, indices: list[Expr], columns: int) -> Place:
    """Return where the rows and columns of a domain read a tensor.

    Raises:
        Unknown: if the elements do not lie evenly.
    """
    flat = as_expr(flatten(indices, tensor.shape))
    every = columns
    if domain.column in compat.free_vars(flat):
        every = repeated(domain, indices, tensor.shape, columns, columns & -columns)
    analyzer = Analyzer()

    def at(row: int) -> int:
        values = {domain.row: compat.const(row, "int64"), domain.column: compat.const(0, "int64")}
        number = compat.int_value(analyzer.simplify(compat.substitute(flat, values)))
        if number is None:
            raise Unknown(f"the index of {tensor.name} depends on more than row and column")
        return number

    base = at(0)
    stride = at(1) - base if int(domain.rows) > 1 else 0
    group, element = compat.tir.Var("group", "int64"), compat.tir.Var("element", "int64")
    compat.bind_range(analyzer, domain.row, as_expr(domain.rows))
    compat.bind_range(analyzer, group, as_expr(columns // every))
    compat.bind_range(analyzer, element, as_expr(every))
    here = compat.substitute(flat, {domain.column: group * every + element})
    if not analyzer.can_prove_equal(here, domain.row * stride + group + base):
        raise Unknown(f"the elements of {tensor.name} do not lie evenly")
    return Place(tensor, base, stride, every)


class _Reads:
    """The loads of a weight, and the expression that it is of them."""

    def __init__(self, alignment: Alignment, columns: int):
        self.al, self.columns = alignment, columns
        self.own = set(alignment.graph.operators)
        self.tensors: dict[object, Tensor] = {}
        self.visits = 0

    def inlined(self, key: Key) -> Expr:
        """Return a value as one expression of loads, in the domain's variables and the model's types."""
        op, point = key
        self.visits += 1  # an operator that is read twice is visited twice
        if self.visits > MOST_VISITS:
            raise Unknown("a weight is computed by many operators")
        if op.is_reduce:
            raise Unknown(f"a weight depends on the reduction {op.name}")
        cursor = iter(self.al.children(key))
        axis = self.al.domain.axis_values(op, point)

        def visit(e: Expr) -> Expr:
            if compat.is_load(e):
                access, child = next(cursor)
                if child is None or access.guarded or any(compat.has_load(i) for i in access.indices):
                    raise Unknown(f"{op.name} gathers")
                producer = access.tensor.producer
                if producer is not None and producer in self.own:
                    return self.inlined((producer, child))
                self.tensors[access.tensor.buffer] = access.tensor
                return compat.load(
                    access.tensor.buffer, self.al.domain.input_indices(access.tensor.shape, child)
                )
            if compat.kind(e) in ("Var", "SizeVar"):
                return axis.get(e, e)
            return compat.rebuild(e, visit)

        return visit(op.value)

    def place(self, tensor: Tensor, load: Expr) -> Place:
        """Return where rows and columns read a load."""
        return place_of(self.al.domain, tensor, compat.elements(load.indices), self.columns)

    def depends_on_position(self, value: Expr) -> bool:
        """Return whether row or column occur in an expression other than in indices."""
        if compat.is_load(value):
            return False
        if compat.kind(value) in ("Var", "SizeVar"):
            return True
        return any(map(self.depends_on_position, compat.operands(value)))

    def with_zero(self, weight: PackedWeight, zero: Expr) -> PackedWeight:
        """Return the weight with a zero point that differs between groups."""
        places = tuple(self.place(self.tensors[compat.load_buffer(e)], e) for e in compat.loads_in(zero))
        if not is_small(zero):
            raise Unknown("zero points of more than 8 bits")
        shared = [p.every for p in places]
        for part in parts_without_loads(zero):
            if self.al.domain.row in compat.free_vars(part):
                raise Unknown("the field of a zero point depends on its row")
            most = self.columns & -self.columns
            index = [compat.tir.Cast("int64", part)]
            shared.append(repeated(self.al.domain, index, [1 << 31], self.columns, most))
        return replace(weight, own_zero=zero, zero_places=places, zero_group=min(shared))

    def fields(self, value: Expr) -> tuple[Place, int, bool]:
        """Return the words that an integer is a field of, its bits, and whether it is signed."""
        loads = compat.loads_in(value)
        if len(loads) != 1:
            raise Unknown(f"an integer of a weight is computed from {len(loads)} elements")
        (load,) = loads
        words = self.place(self.tensors[compat.load_buffer(load)], load)
        size = 8 * item_bytes(compat.dtype_of(load))
        bits = size // min(words.every, size)
        if bits not in (2, 4, 8) or bits * words.every != size or size > 32:
            raise Unknown(f"{words.every} weights in an element of {size} bits")
        for signed in (False, True):
            if all(self._is_field(value, load, j, bits, signed, size) for j in range(words.every)):
                return words, bits, signed
        raise Unknown("an integer of a weight is no field of a word")

    def _is_field(self, value: Expr, load: Expr, number: int, bits: int, signed: bool, size: int) -> bool:
        """Return whether an integer is the field of a number, for the words of each single bit and for 0."""
        domain, analyzer = self.al.domain, Analyzer()
        group = compat.tir.Var("group", "int64")
        compat.bind_range(analyzer, group, as_expr(self.columns * bits // size))
        column = group * (size // bits) + number

        def constant(e: Expr) -> int:
            constant_value = compat.int_value(
                analyzer.simplify(compat.substitute(e, {domain.column: column}))
            )
            if constant_value is None:
                raise Unknown("the shift of an integer depends on more than its column")
            return constant_value

        def numbers_of(e: Expr, words: np.ndarray) -> np.ndarray:
            """Return an integer of each of some words <words> as int64, in the range of the expression's type."""
            name, dtype = compat.kind(e), compat.dtype_of(e)
            if compat.is_load(e):
                return _in_type(words, dtype)
            if not compat.has_load(e):
                return np.full_like(words, constant(e))
            name = compat.call_name(e) if name == "Call" else name
            below = compat.operands(e)
            if name == "Cast" and dtype.startswith(("int", "uint")):
                return _in_type(numbers_of(below[0], words), dtype)
            if name not in _LINEAR or (name not in _COMMUTES and not compat.has_load(below[0])):
                raise Unknown(f"an integer of a weight is computed by {name}")
            a, b = (numbers_of(each, words) for each in below)
            if name in ("FloorDiv", "FloorMod") and (b[0] <= 0 or b[0] & (b[0] - 1)):
                raise Unknown(f"an integer of a weight is divided by {b[0]}")
            return _in_type(_LINEAR[name](a, b), dtype)

        words = np.concatenate([[0], 1 << np.arange(size, dtype="int64")])
        expected = words >> bits * number & (1 << bits) - 1
        if signed:
            expected -= expected >> bits - 1 << bits
        return bool((numbers_of(value, words) == expected).all())


_LINEAR = {
    "shift_right": lambda a, b: a >> b,
    "RShift": lambda a, b: a >> b,
    "shift_left": lambda a, b: a << b,
    "LShift": lambda a, b: a << b,
    "bitwise_and": lambda a, b: a & b,
    "BitwiseAnd": lambda a, b: a & b,
    "FloorDiv": lambda a, b: a // b,
    "FloorMod": lambda a, b: a % b,
}
"""Operations on a word, by a number, that are linear over its bits."""
_COMMUTES = ("bitwise_and", "BitwiseAnd")


def _in_type(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return integers wrapped to a type of at most 64 bits."""
    size = 8 * item_bytes(dtype)
    if size == 64:
        return values
    values = values & (1 << size) - 1
    return values if dtype.startswith("uint") else values - (values >> size - 1 << size)
