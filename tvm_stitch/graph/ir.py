# SPDX-License-Identifier: Apache-2.0
"""The StitchGraph data model: tensors, operators, and the accesses (edges) between them."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .. import compat
from ..compat import Buffer, Expr, Var
from .extent import Extent, is_number, product, text_of


class Dependency(enum.Enum):
    """Element-level dependency of an edge, seen from the producer's elements (AStitch, section 3)."""

    NONE = "none"
    ONE_TO_ONE = "one-to-one"
    ONE_TO_MANY = "one-to-many"
    MANY_TO_ONE = "many-to-one"
    GENERAL = "general"


class OpClass(enum.Enum):
    """Class of an operator by its effect on its inputs' elements."""

    LIGHT = "light element-wise"
    HEAVY = "heavy element-wise"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    MOVE = "data movement"


class Span(enum.Enum):
    """The axes of an operator's iteration space that an access depends on, if its flat index shows it exactly.

    The operator's axes are ordered: spatial axes, then reduced axes.

    - ``ALL``: the identity on the flat index.
    - ``LEADING``: a projection onto the first axes.
    - ``TRAILING``: a projection onto the last axes.
    - ``NOTHING``: a single element.
    - ``OTHER``: anything else (transposes, slices, gathers).
    """

    ALL = "all"
    LEADING = "leading"
    TRAILING = "trailing"
    NOTHING = "nothing"
    OTHER = "other"


@dataclass(eq=False)
class Axis:
    """One axis of an operator's iteration space."""

    var: Var
    extent: Extent


@dataclass(eq=False)
class Tensor:
    """A value of the graph.

    ``producer`` is None for an input. ``buffer`` is the function's buffer that holds the value.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: str
    buffer: Buffer = None
    producer: Operator | None = None
    consumers: list[Operator] = field(default_factory=list)

    @property
    def size(self) -> Extent:
        """Number of elements."""
        return product(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}<{','.join(map(text_of, self.shape))}>{self.dtype}"


@dataclass(eq=False)
class Access:
    """An operator's read of a tensor: ``indices`` over the operator's axis variables.

    ``guarded`` marks a read below ``if_then_else`` (or a ``Select`` that gathers). It may be out of bounds while
    the condition is false, so no pass may move it out of the branch. ``span`` and ``cut`` say which axes it depends
    on. ``cut`` is the number of leading axes of a ``LEADING`` access, and the position of the first axis of a
    ``TRAILING`` one.
    """

    tensor: Tensor
    buffer: Buffer
    indices: tuple[Expr, ...]
    guarded: bool
    span: Span
    cut: int = 0


@dataclass(eq=False)
class Operator:
    """One block of the function: ``output[spatial] = value`` or ``output[spatial] = combine over reduce of value``.

    ``value`` is a scalar expression over the axes' variables. Its loads read the buffers in ``operand``. A
    reduction has a ``combiner`` (a name in :data:`.combiners.COMBINERS`, else None) and the start value
    ``identity``. The axes of ``spatial`` are in the order of the output's dimensions.
    """

    name: str
    output: Tensor
    spatial: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    value: Expr
    accesses: tuple[Access, ...]
    operand: dict[Buffer, Tensor]
    op_class: OpClass
    combiner: str | None = None
    identity: Expr | None = None
    contraction: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, spatial ones first."""
        return self.spatial + self.reduce

    @property
    def is_reduce(self) -> bool:
        """True for a reduction."""
        return self.combiner is not None

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The extents of ``axes``."""
        return tuple(a.extent for a in self.axes)

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The distinct tensors read, in order of first access."""
        return list(dict.fromkeys(a.tensor for a in self.accesses))

    def dependency(self, access: Access) -> Dependency:
        """Return the element-level dependency of the edge behind ``access``."""
        one_point = all(is_number(e, 1) for e in self.extents)
        if access.span is Span.ALL or (access.span is Span.NOTHING and one_point):
            return Dependency.MANY_TO_ONE if self.is_reduce else Dependency.ONE_TO_ONE
        if access.span in (Span.LEADING, Span.TRAILING, Span.NOTHING):
            return Dependency.ONE_TO_MANY
        vars_of = [i for i in access.indices if compat.kind(i) in ("Var", "SizeVar")]
        if len(vars_of) == len(access.indices) == len(self.axes) == len(set(vars_of)):
            return Dependency.MANY_TO_ONE if self.is_reduce else Dependency.ONE_TO_ONE
        if len(vars_of) + sum(compat.int_value(i) == 0 for i in access.indices) == len(access.indices):
            return Dependency.ONE_TO_MANY if len(vars_of) == len(set(vars_of)) else Dependency.GENERAL
        return Dependency.GENERAL

    def __repr__(self) -> str:
        space = ",".join(text_of(a.extent) for a in self.spatial)
        reduced = " over " + ",".join(text_of(a.extent) for a in self.reduce) if self.reduce else ""
        return f"{self.output.name} = {self.name}<{space}>{reduced}"


def wired(op: Operator) -> Operator:
    """Register the operator as producer and consumer of its tensors, and return it."""
    op.output.producer = op
    for t in op.inputs:
        t.consumers.append(op)
    return op


def copied(op: Operator, tensors: Mapping[Tensor, Tensor]) -> Operator:
    """Return a copy of the operator, wired to other tensors. ``tensors`` maps each of its tensors to the new one."""
    accesses = tuple(
        Access(tensors[a.tensor], a.buffer, a.indices, a.guarded, a.span, a.cut) for a in op.accesses
    )
    operand = {buffer: tensors[t] for buffer, t in op.operand.items()}
    # ``replace`` of dataclasses takes three times as long, and large graphs are copied often.
    copy = Operator(
        op.name,
        tensors[op.output],
        op.spatial,
        op.reduce,
        op.value,
        accesses,
        operand,
        op.op_class,
        op.combiner,
        op.identity,
        op.contraction,
    )
    return wired(copy)


@dataclass(eq=False)
class StitchGraph:
    """The computation of one stitch op: operators in topological order between ``inputs`` and ``outputs``."""

    name: str
    inputs: list[Tensor]
    operators: list[Operator]
    outputs: list[Tensor]
    symbols: list[Var] = field(default_factory=list)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the inputs, then every operator's output."""
        yield from self.inputs
        for op in self.operators:
            yield op.output

    def touched(self) -> Iterator[Tensor]:
        """Yield the tensors without inputs that nothing reads, as those of a matmul with an empty reduction
        dimension.
        """
        read = {access.tensor for op in self.operators for access in op.accesses} | set(self.outputs)
        return (t for t in self.tensors() if t in read or t not in self.inputs)

    @property
    def reduces(self) -> list[Operator]:
        """The reductions, in topological order."""
        return [op for op in self.operators if op.is_reduce]

    @property
    def has_products(self) -> bool:
        """True if some reduction is a contraction: the sums of a product of few rows, in a stitch op."""
        return any(op.contraction for op in self.operators)

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(map(repr, self.inputs))})"]
        for op in self.operators:
            edges = ", ".join(f"{a.tensor.name}:{op.dependency(a).value}" for a in op.accesses)
            lines.append(f"  {op!r}  [{op.op_class.value}] <- {edges or 'nothing'}")
        lines.append(f"  return {', '.join(map(repr, self.outputs))}")
        return "\n".join(lines)
