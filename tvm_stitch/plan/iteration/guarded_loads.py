# SPDX-License-Identifier: Apache-2.0
"""Inputs that are read below conditions, as in a concatenation of sums or the border of a pad.

Such an expression is evaluated for each column. Its conditions are often the same for all columns of a vector, which
are neighbours in an input that it reads. Then a thread decides once for the vector, and loads a vector of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ... import compat
from ...compat import Expr, has_load
from ...graph.access import branches, loads
from ...graph.dtype import item_bytes
from ...graph.extent import bounded
from ...graph.ir import Access
from .alignment import Alignment, Key
from .contiguity import vectorizable
from .domain import At
from .loops import Leaf, RowLoop
from .uniform import uniform_columns
from .window_sums import WindowSum, grouped, window_sum

Literal = tuple[int, bool]
"""The number of a condition, and whether it holds."""
Path = frozenset[Literal]
"""Literals that all hold."""


@dataclass(frozen=True, eq=False)
class GuardedLoad:
    """An input that is read if all literals of one of the ``paths`` hold."""

    leaf: Leaf
    paths: tuple[Path, ...]

    def excludes(self, other: GuardedLoad) -> bool:
        """Return whether at most one of both is read."""
        return all(
            any((number, not holds) in theirs for number, holds in own)
            for own in self.paths
            for theirs in other.paths
        )


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition in the domain's row and column variables. It is the same for ``columns`` neighbouring columns."""

    value: Expr
    columns: int


@dataclass(frozen=True, eq=False)
class Slot:
    """Loads of which a thread needs at most one for a vector of ``columns`` columns. They share registers."""

    loads: tuple[GuardedLoad, ...]
    columns: int


@dataclass(frozen=True, eq=False)
class Group:
    """Terms of a sum that are added up together, by their numbers, and the loads that they need and none before."""

    terms: tuple[int, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class GroupedSum:
    """A sum of which a thread loads and adds up the terms of a vector of columns group by group."""

    of: WindowSum
    groups: tuple[Group, ...]


@dataclass(frozen=True, eq=False)
class GuardedLoads:
    """The guarded loads of a pass.

    Attributes:
        conditions: all conditions that loads depend on.
        numbers: the number of a condition, by the operator at a point and the key of its expression there. Its value
            if it is the same everywhere.
        slots: the loads that are not those of a sum.
        sums: sums with loads of their own.
    """

    conditions: tuple[Condition, ...]
    numbers: Mapping[tuple[Key, Hashable], int | bool]
    slots: tuple[Slot, ...]
    sums: tuple[GroupedSum, ...] = ()

    @property
    def all_slots(self) -> tuple[Slot, ...]:
        """The loads of the pass, those of sums too."""
        return (*self.slots, *(slot for s in self.sums for group in s.groups for slot in group.slots))


NONE = GuardedLoads((), {}, ())


def guarded_loads(alignment: Alignment, p: RowLoop, vector: int, values: Iterable[Key]) -> GuardedLoads:
    """Return the loads below conditions that vectors of ``vector`` columns of ``values`` of a pass need.

    Inputs that the pass loads anyway are left out, and so are inputs of which neighbouring columns need elements that
    are not neighbours.
    """
    if vector == 1 or not isinstance(p.columns, int):
        return NONE
    finder = _Finder(alignment, p, vector)
    for key in values:
        finder.visit_value(key)
    return finder.result()


class _Finder:
    """Follows the expressions of values below their conditions, as the evaluator does."""

    def __init__(self, alignment: Alignment, p: RowLoop, vector: int):
        self.al, self.p, self.vector = alignment, p, vector
        self.loaded = set(p.loads)
        self.conditions: list[Condition] = []
        self.known: dict[Hashable, int | bool | None] = {}
        self.numbers: dict[tuple[Key, Hashable], int | bool] = {}
        self.paths: dict[Leaf, list[Path]] = {}
        self.scalar: set[Leaf] = set()  # read below a condition that differs between neighbouring columns
        self.sums: list[WindowSum] = []
        self.term: tuple[int, int] | None = None  # the sum that is visited, and its term
        self.users: dict[Leaf, set[tuple[int, int] | None]] = {}  # the terms that read an input
        self.uneven: set[int] = set()  # sums that read values of the pass
        self.visits = alignment.choices.guarded_visits
        domain = alignment.domain
        self.analyzer = bounded([(domain.row, domain.rows), (domain.column, p.columns)])

    def visit_value(self, key: Key) -> None:
        """Note the guarded loads of a value of the pass, and the sum in it whose terms they are."""
        found = window_sum(key, self.al.choices.window_reads)
        if found is not None:
            self.sums.append(found)
        self.visit(key, frozenset(), of=found)

    def visit(self, key: Key, path: Path | None, guarded: bool = False, of: WindowSum | None = None) -> None:
        """Note the guarded loads of a value. It is read where all literals of ``path`` hold, elsewhere too if None."""
        self.visits -= 1
        if self.visits < 0:
            return
        op, point = key
        axis = self.al.domain.axis_values(op, point)
        accesses = enumerate(self.al.children(key))

        def walk(e: Expr, path: Path | None, guarded: bool) -> None:
            if compat.is_load(e):
                position, (access, child) = next(accesses)
                if of is not None:
                    term = of.term_of(position)
                    self.term = None if term is None else (len(self.sums) - 1, term)
                if child is None:  # a gather, whose indices are values
                    for index in e.indices:
                        walk(index, path, guarded)
                    return
                for _ in range(sum(1 for i in compat.elements(e.indices) for _ in loads(i))):
                    next(accesses)
                self._read(access, (access.tensor, child), path, guarded)
                return
            chosen = branches(e)
            if chosen is None:
                for each in compat.operands(e):
                    walk(each, path, guarded)
                return
            walk(chosen[0], path, guarded)
            number = self._number(key, chosen[0], axis)
            for branch, holds in ((chosen[1], True), (chosen[2], False)):
                walk(branch, self._below(path, number, holds), True)

        walk(op.value, path, guarded)
        if of is not None:
            self.term = None

    def _below(self, path: Path | None, number: int | bool | None, holds: bool) -> Path | None:
        """Return the path of a branch, or None if it is unknown. A path that never holds contradicts itself."""
        if path is None or number is None:
            return None
        if isinstance(number, bool):
            return path if number is holds else path | {(-1, True), (-1, False)}
        return path | {(number, holds)}

    def _read(self, access: Access, leaf: Leaf, path: Path | None, guarded: bool) -> None:
        tensor, point = leaf
        producer = tensor.producer
        if producer is not None and tensor not in self.al.graph.inputs:
            if (guarded or access.guarded) and point.at is At.INDEX:
                self.visit((producer, point), path, True)
            elif self.term is not None:
                self.uneven.add(self.term[0])
        elif guarded and point.per_column and leaf not in self.loaded:
            self.users.setdefault(leaf, set()).add(self.term)
            if path is None:
                self.scalar.add(leaf)
            elif not _contradicts(path):
                self.paths.setdefault(leaf, []).append(path)

    def _number(self, key: Key, condition: Expr, axis: Mapping) -> int | bool | None:
        """Return the number of a condition, its value if it is known, or None if vectors do not agree on it."""
        if has_load(condition):
            return None
        here = self.analyzer.simplify(compat.substitute(condition, axis))
        same = compat.expression_key(here)
        if same not in self.known:
            self.known[same] = self._numbered(here)
        number = self.known[same]
        if number is not None:
            self.numbers[(key, compat.expression_key(condition))] = number
        return number

    def _numbered(self, condition: Expr) -> int | bool | None:
        constant = compat.int_value(condition)
        if constant is not None:
            return bool(constant)
        assert isinstance(self.p.columns, int)
        columns = uniform_columns(self.al.domain, condition, self.p.columns, self.vector)
        if columns == 1:
            return None
        self.conditions.append(Condition(condition, columns))
        return len(self.conditions) - 1

    def result(self) -> GuardedLoads:
        """Return the loads that are worth a vector, in slots."""
        if self.visits < 0:
            return NONE
        slots: list[list[GuardedLoad]] = []
        widths: list[int] = []
        for leaf, paths in self.paths.items():
            width = 1 if leaf in self.scalar else self._width(leaf, paths)
            if width == 1:
                continue
            load = GuardedLoad(leaf, tuple(dict.fromkeys(paths)))
            for loads_, columns in zip(slots, widths):
                alike = columns == width and loads_[0].leaf[0].dtype == leaf[0].dtype
                if alike and all(load.excludes(other) for other in loads_):
                    loads_.append(load)
                    break
            else:
                slots.append([load])
                widths.append(width)
        if not slots and not any(isinstance(number, bool) for number in self.numbers.values()):
            return NONE
        made = [Slot(tuple(loads_), columns) for loads_, columns in zip(slots, widths)]
        sums = [s for number in range(len(self.sums)) if (s := self._grouped(number, made)) is not None]
        own = {id(slot) for s in sums for group in s.groups for slot in group.slots}
        others = tuple(slot for slot in made if id(slot) not in own)
        return GuardedLoads(tuple(self.conditions), self.numbers, others, tuple(sums))

    def _grouped(self, number: int, slots: Sequence[Slot]) -> GroupedSum | None:
        """Return a sum with the slots that it alone needs, or None if these are few or it reads values of the pass."""
        needs: list[list[tuple[Slot, float]]] = [[] for _ in self.sums[number].terms]
        count = 0
        for slot in slots:
            users = {user for load in slot.loads for user in self.users[load.leaf]}
            terms = [user[1] for user in users if user is not None and user[0] == number]
            if len(terms) < len(users):
                continue
            count += 1
            words = self.vector * max(1.0, item_bytes(slot.loads[0].leaf[0].dtype) / 4)
            for term in terms:
                needs[term].append((slot, words))
        if number in self.uneven or count < self.al.choices.window_reads:
            return None
        groups = grouped(needs, self.al.choices.window_words)
        return GroupedSum(self.sums[number], tuple(Group(tuple(terms), tuple(own)) for terms, own in groups))

    def _width(self, leaf: Leaf, paths: Collection[Path]) -> int:
        """Return the columns of a vector that a load moves at once."""
        tensor, point = leaf
        if tensor.dtype == "bool":
            return 1
        domain, columns = self.al.domain, self.p.columns
        width = min([self.vector, 16 // item_bytes(tensor.dtype), *self._widths(paths)])
        indices = domain.input_indices(tensor.shape, point)
        while width > 1 and not vectorizable(domain, indices, tensor.shape, columns, width):
            width //= 2
        return width

    def _widths(self, paths: Collection[Path]) -> Iterator[int]:
        for path in paths:
            for number, _ in path:
                yield self.conditions[number].columns


def _contradicts(path: Path) -> bool:
    return any((number, not holds) in path for number, holds in path)
