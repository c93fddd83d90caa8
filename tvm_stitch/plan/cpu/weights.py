# SPDX-License-Identifier: Apache-2.0
"""Rows of weights on a CPU: vectors run along a row, so that a word of packed integers is one element of a vector.

The order of a sum is free. So a vector takes every eighth column if eight columns share a word: its elements are
neighbouring words, and the same field of each. The eight fields follow one after the other, from words that are in
registers. A scale that all of them share multiplies their sum, and not each weight. The other factor is the same for
all rows of weights: the kernel puts it into this order once, before the first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ... import compat
from ...compat import Analyzer
from ...device import DeviceModel
from ...graph.dtype import compute_dtype
from ...graph.extent import as_expr, flatten
from ..iteration.alignment import Alignment, Key
from ..iteration.domain import At, Domain, Point
from ..iteration.loops import Leaf, LoopNest, RowLoop
from ..rows.weights import is_weight, repeats_of, sums_of_products


@dataclass(frozen=True)
class Chunks:
    """Chunks of a row that one loop walks.

    A chunk has ``steps`` vectors of each of the ``fields``. Its columns are in order of steps, lanes and fields.

    Attributes:
        start: the first column.
        count: the number of chunks.
        lanes: the elements of a vector.
        steps: the vectors of a chunk for each field.
        fields: the neighbouring columns of an element of a vector.
    """

    start: int
    count: int
    lanes: int
    steps: int
    fields: int

    @property
    def columns(self) -> int:
        """The columns of a chunk."""
        return self.steps * self.vector

    @property
    def vector(self) -> int:
        """The columns of a step: those of the vectors of all fields."""
        return self.lanes * self.fields


@dataclass(frozen=True)
class WeightLanes:
    """Vectors along rows of weights.

    Attributes:
        sums: the pass that takes the sums.
        chunks: the slices of its columns in order, the first with the longest vectors.
        scaled_once: whether the sum over a chunk is multiplied by the factors that all its columns share.
        repeats: the neighbouring columns that read the same element of an input, for inputs that rows read elements
            of their own of. Inputs whose elements are not consecutive are missing.
        prepared: the factors that all rows share, computed once and kept in the order of the chunks.
        block: the first chunks that all rows of a task walk before the next ones, or 0 if each row walks all chunks.
            The first-level cache holds the factors of a block.
    """

    sums: RowLoop
    chunks: tuple[Chunks, ...]
    scaled_once: bool
    repeats: Mapping[Leaf, int] = field(repr=False)
    prepared: tuple[Leaf | Key, ...] = ()
    block: int = 0

    def describe(self) -> str:
        """Return a short text, for ``explain``."""
        first = self.chunks[0]
        scaled = ", scaled once a chunk" if self.scaled_once else ""
        return f"{first.fields} fields of {first.steps} x {first.lanes} lanes{scaled}"

    @property
    def lanes(self) -> int:
        """The elements of the longest vector."""
        return self.chunks[0].lanes

    @property
    def fields(self) -> int:
        """The neighbouring columns of an element of a vector."""
        return self.chunks[0].fields


def weight_lanes(alignment: Alignment, sched: LoopNest, device: DeviceModel) -> WeightLanes | None:
    """Return vectors along rows of weights, or None for other rows.

    Args:
        alignment: of the operators.
        sched: their passes.
        device: the device that the kernel is for.
    """
    domain, choices = alignment.domain, device.choices
    if domain.flat or not isinstance(domain.rows, int) or domain.rows == 1:
        return None
    if not all(isinstance(columns, int) for columns in sched.spaces):
        return None
    sums = sums_of_products(alignment, sched)
    if sums is None:
        return None
    columns = int(sums.columns)
    weights = [leaf for leaf in sums.loads if is_weight(alignment, leaf)]
    repeats = {leaf: repeats_of(alignment, leaf, columns, choices.weight_group) for leaf in weights}
    if not repeats:
        return None
    fields = min(*repeats.values(), choices.weight_columns)
    read_once = {
        leaf: every for leaf, every in repeats.items() if _is_consecutive(alignment, leaf, columns, every)
    }
    if not any(repeats[leaf] == fields for leaf in read_once):
        return None  # the words of neighbouring columns lie apart
    integers = any(leaf[0].dtype.startswith(("int", "uint")) for leaf in weights)
    scaled_once = integers and len(sums.reduces) <= choices.scaled_sums
    lanes, steps = _vector(len(sums.reduces), fields, scaled_once, device)
    if any(every < lanes * steps * fields for every in read_once.values() if every > fields):
        steps = 1  # a scale differs between the steps
    chunks = tuple(_chunks(columns, lanes, steps, fields))
    prepared = tuple(dict.fromkeys(_shared_by_rows(alignment, sums, fields)))
    block = _block(chunks[0], len(prepared), columns, device)
    return WeightLanes(sums, chunks, scaled_once and steps * fields > 1, read_once, prepared, block)


def _shared_by_rows(alignment: Alignment, sums: RowLoop, fields: int) -> Iterator[Leaf | Key]:
    """Yield the factors that all rows share, but for a float32 vector in memory that is read as it lies.

    Several vectors in memory are often a power of two apart, and then evict each other from a cache.
    """
    domain, own = alignment.domain, set(alignment.graph.operators)
    waiting: list[Key] = [(op, domain.full(sums.columns)) for op in sums.reduces]
    visited: set[Key] = set()
    while waiting:
        key = waiting.pop()
        if key in visited:
            continue
        visited.add(key)
        for access, point in alignment.children(key):
            if point is None or not point.per_column or access.guarded:
                continue
            producer = access.tensor.producer
            below = (producer, point) if producer is not None and producer in own else None
            if _of_row(domain, point):
                waiting += [] if below is None else [below]
            elif compute_dtype(access.tensor.dtype) == "float32":
                leaf = access.tensor, point
                as_it_lies = access.tensor.dtype == "float32" and fields == 1 and point.at is At.COLUMN
                if below is not None or not (
                    as_it_lies and _is_consecutive(alignment, leaf, int(sums.columns), 1)
                ):
                    yield leaf if below is None else below


def _of_row(domain: Domain, point: Point) -> bool:
    """Return whether the value at a point may differ between rows."""
    if point.at is At.INDEX:
        return any(domain.row in compat.free_vars(i) for i in point.indices)
    return point.at is not At.COLUMN


def _is_consecutive(alignment: Alignment, leaf: Leaf, columns: int, every: int) -> bool:
    """Return whether the elements that groups of ``every`` neighbouring columns read are consecutive."""
    domain, (tensor, point) = alignment.domain, leaf
    flat = as_expr(flatten(domain.input_indices(tensor.shape, point), tensor.shape))
    analyzer = Analyzer()
    group, element = compat.tir.Var("group", "int64"), compat.tir.Var("element", "int64")
    compat.bind_range(analyzer, domain.row, as_expr(domain.rows))
    compat.bind_range(analyzer, group, as_expr(max(1, columns // every - 1)))
    compat.bind_range(analyzer, element, as_expr(every))
    here, after = (
        compat.substitute(flat, {domain.column: (group + first) * every + element}) for first in (0, 1)
    )
    return bool(analyzer.can_prove_equal(after - here, 1))


def _vector(sums: int, fields: int, scaled_once: bool, device: DeviceModel) -> tuple[int, int]:
    """Return the elements of a vector, and the steps of a chunk. All partial sums are to stay in registers."""
    choices = device.choices
    lanes, most = choices.cpu_lanes, device.vector_lanes * device.vector_registers * choices.sums_share
    while lanes > device.vector_lanes and lanes * sums * (1 + scaled_once) > most:
        lanes //= 2
    steps = choices.cpu_lanes // lanes if scaled_once and fields == 1 else 1
    return lanes, steps


def _block(first: Chunks, factors: int, columns: int, device: DeviceModel) -> int:
    """Return the chunks of a block, or 0 for a single block."""
    chunk_bytes = 4 * factors * first.columns
    if (
        not chunk_bytes
        or factors < device.choices.blocked_factors
        or 4 * factors * columns <= device.shared_per_block
    ):
        return 0
    block = max(1, device.choices.block_bytes // chunk_bytes)
    return 0 if block >= first.count else block


def _chunks(columns: int, lanes: int, steps: int, fields: int) -> Iterator[Chunks]:
    """Yield slices that cover a row, with shorter chunks and vectors at its end."""
    start = 0
    while start < columns:
        chunk = lanes * steps * fields
        count = (columns - start) // chunk
        if count:
            yield Chunks(start, count, lanes, steps, fields)
            start += count * chunk
        if steps > 1:
            steps = 1
        else:
            lanes //= 2
