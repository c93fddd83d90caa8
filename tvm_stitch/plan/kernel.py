# SPDX-License-Identifier: Apache-2.0
"""KernelPlan: everything decided about one stitch op before code is written, as phases of stages.

Grid barriers divide phases. A stage evaluates one domain of rows by one mapping. A stitch op that stays in its blocks
is one phase of one stage, the whole graph.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from ..compat import Var
from ..device import DeviceModel
from ..graph.extent import Extent, static_extent
from ..graph.ir import Operator, StitchGraph, Tensor
from .cpu.tile import CpuMapping
from .dominants import Group
from .gpu.mapping import CrossBlockReduction, RowMapping
from .iteration.alignment import Alignment, Key
from .iteration.contiguity import access_elements
from .iteration.guarded_loads import GuardedLoads, guarded_loads
from .iteration.loops import Leaf, LoopNest, RowLoop, is_streamed
from .iteration.pieces import Choice, choice_of
from .layout import SharedBuffer, SharedMemory, StageLayout, WeightRing
from .slices import Slice


class Scheme(enum.Enum):
    """The scheme of an operator: where its result lives for its consumers (AStitch 3)."""

    INDEPENDENT = "Independent"
    LOCAL = "Local"
    REGIONAL = "Regional"
    CLUSTER = "Cluster"
    GLOBAL = "Global"


@dataclass(frozen=True)
class Scratch:
    """A buffer in device memory in which blocks hand values to each other.

    It becomes a trailing output of the PrimFunc, lifted to Relax' workspace.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Stage:
    """A slice of the stitch op with its schedule and mapping.

    On a grid that several stages share, ``tasks`` groups of rows (or pieces of a flat domain) are shared out over
    ``stride`` blocks. A step takes ``unroll`` of them. ``tiles`` pieces of the columns have blocks of their own.
    ``offset`` is the block of the first task. ``backwards``: a block takes its tasks from the last to the first,
    because the caches hold the end of an earlier phase's reads. ``spread``: neighbouring rows of a slot's
    tasks belong to different blocks, so that all blocks have rows in the last round too.

    ``resident`` are inputs that all rows share, of which a thread keeps its columns for all of its tasks. ``early``
    are inputs that passes behind a reduction read, and that are loaded before the first pass. In a stage that every
    block of a grid computes, they are inputs that are loaded before the barrier in front. ``rescaled`` are sums
    that are taken relative to their warp's maximum, each with the maximum's operator. ``groups`` are the dominant
    groups whose operators, of the whole graph, the stage evaluates. ``layout`` is the stage's shared memory, filled
    once the plan is complete.
    """

    slice: Slice
    schedule: LoopNest
    mapping: RowMapping | CpuMapping
    tasks: int = 1
    stride: int = 1
    tiles: int = 1
    offset: int = 0
    unroll: int = 1
    backwards: bool = False
    spread: bool = False
    resident: tuple[Leaf, ...] = ()
    early: tuple[Leaf, ...] = ()
    l2_resident: tuple[Leaf, ...] = ()
    rescaled: Mapping[Operator, Operator] = field(default_factory=dict)
    layout: StageLayout = field(default_factory=StageLayout)
    groups: tuple[Group, ...] = ()

    @property
    def graph(self) -> StitchGraph:
        """The slice's own graph."""
        return self.slice.graph

    @property
    def alignment(self) -> Alignment:
        """The slice's alignment."""
        return self.slice.alignment

    @property
    def row_mapping(self) -> RowMapping:
        """The mapping of a stage for a GPU."""
        assert isinstance(self.mapping, RowMapping), "the plan was not made for a GPU"
        return self.mapping

    @property
    def levels(self) -> list[list[RowLoop]]:
        """The passes, in lists whose reductions are folded at once: those of a level, and rescaled sums of the next."""
        levels: list[list[RowLoop]] = []
        for _, level in groupby(self.schedule.passes, key=lambda p: p.level):
            passes = list(level)
            if any(op in self.rescaled for p in passes for op in p.reduces):
                levels[-1] += passes
            else:
                levels.append(passes)
        return levels

    @property
    def column_reductions(self) -> dict[int, list[Operator]]:
        """The reductions across rows that have a result for each column, by the number of columns."""
        reductions: dict[int, list[Operator]] = {}
        for op, point in self.schedule.cross_row:
            if op.output.size != 1:
                reductions.setdefault(static_extent(point.columns), []).append(op)
        return reductions

    @property
    def bound_weight(self) -> int:
        """Nodes of a light expression up to which it is computed wherever it is used."""
        return self.alignment.choices.bound_weight

    @property
    def partials_in_order(self) -> int:
        """Partial results of other warps or blocks up to which every thread folds them one after the other."""
        return self.alignment.choices.partials_in_order

    def streams(self, leaf: Leaf) -> bool:
        """Return whether every row reads elements of its own of an input."""
        weights = self.mapping.weights if isinstance(self.mapping, RowMapping) else {}
        return leaf in weights or is_streamed(self.alignment.domain.rows, leaf)

    def repeats(self, leaf: Leaf) -> int:
        """Return how many neighbouring columns of a thread read the same element of an input."""
        return self.row_mapping.weights.get(leaf, 1)

    def load_elements(self, leaf: Leaf, dtype: str) -> int:
        """Return how many elements of an input, which is in memory as ``dtype``, one access moves."""
        tensor, point = leaf
        domain, columns = self.alignment.domain, self.schedule.loading(leaf).columns
        indices, vector = domain.input_indices(tensor.shape, point), self.row_mapping.of(columns).vector
        return access_elements(domain, indices, tensor.shape, dtype, columns, vector, self.repeats(leaf))

    def reads_pairs(self, leaf: Leaf, dtype: str) -> bool:
        """Return whether a thread reads two elements of an input, which is in memory as ``dtype``, as one word.

        These are pairs of bfloat16 in kernels that write rows. Cross-entropy of 8,192 columns, which writes none,
        took 1.02 of the time with pairs on an H100 and on an H200. An RMS norm of 131,072 columns took 0.98
        (``scripts/bench_rows.py``).
        """
        if dtype != "bfloat16" or not any(p.outputs for p in self.schedule.passes):
            return False
        return self.load_elements(leaf, dtype) % 2 == 0

    def choice(self, key: Key, columns: Extent) -> Choice | None:
        """Return the inputs of which a thread chooses one for several columns of a value, if the value is that."""
        return choice_of(self.alignment, key, columns, self.row_mapping.of(columns).vector)

    def guarded_loads(self, p: RowLoop, values: Iterable[Key]) -> GuardedLoads:
        """Return the loads below conditions that vectors of these values of a pass need."""
        return guarded_loads(self.alignment, p, self.row_mapping.of(p.columns).vector, values)

    def store_elements(self, key: Key, dtype: str) -> int:
        """Return how many elements of an output, which is in memory as ``dtype``, one access moves."""
        op, domain = key[0], self.alignment.domain
        columns = next(p.columns for p in self.schedule.passes if key in p.outputs)
        indices, vector = domain.output_indices(*key), self.row_mapping.of(columns).vector
        return access_elements(domain, indices, op.output.shape, dtype, columns, vector)

    @property
    def exchange(self) -> CrossBlockReduction:
        """The method by which blocks that share a row combine their partial results. A CPU's tasks share none."""
        return self.mapping.exchange if isinstance(self.mapping, RowMapping) else CrossBlockReduction.NONE


@dataclass(frozen=True, eq=False)
class Variant:
    """A stage for rows of symbolic length that turn out to have at most ``longest`` columns.

    ``multiples`` are the symbols that must also be multiples of a number.
    """

    longest: int
    stage: Stage
    multiples: tuple[tuple[Var, int], ...] = ()


@dataclass(frozen=True, eq=False)
class InterPhaseReuse:
    """Inputs of which every block keeps what its first tasks loaded, for the phases that read it again.

    ``tensors`` are inputs of the whole graph, ``stages`` those that read all of them, in order of their phases. The
    first stage loads the elements. Threads of the other stages find their own elements in the same storage. A block
    keeps ``shared`` tasks in shared memory, of ``bytes`` each, and the ``registers`` next ones in registers.
    ``leaves`` are, for each stage, its loads of the tensors. ``buffers`` are those of the tensors in shared memory,
    if tasks stay there.
    """

    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    shared: int
    registers: int
    bytes: int
    leaves: tuple[tuple[Leaf, ...], ...]
    buffers: tuple[SharedBuffer, ...] = ()

    @property
    def tasks(self) -> int:
        """Tasks of a block that are kept."""
        return self.shared + self.registers

    @property
    def shared_bytes(self) -> int:
        """Bytes of a block's shared memory that the kept tasks take."""
        return self.shared * self.bytes


@dataclass(frozen=True)
class Crossing:
    """Values that cross between blocks, as tensors of the whole graph.

    Several blocks combine some reductions through device memory. ``partials`` maps each of these to the tensor of its
    partial results, one a block (the last dimension). ``scalars`` are reductions across rows with one result. Every
    block finishes them behind the phase given. ``stored`` are the global tensors that are written as they are.
    ``shared`` are the tensors that every block has in its shared memory, with the phase of their stages.
    """

    partials: Mapping[Operator, Tensor] = field(default_factory=dict)
    scalars: Mapping[Operator, int] = field(default_factory=dict)
    stored: Mapping[Tensor, int] = field(default_factory=dict)
    shared: Mapping[Tensor, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """The launch that all stages share: ``blocks`` of ``threads`` threads, ``blocks_per_sm`` of them resident at once.

    Without ``barriers`` every phase is a kernel of its own.
    """

    threads: int
    blocks: int
    blocks_per_sm: int
    barriers: bool = True


@dataclass(frozen=True)
class KernelPlan:
    """A stitch op: its phases of stages, the values that cross between them, the launch and the scratch.

    ``grid`` is None for a plan of a single stage, whose mapping says how many blocks rows take. ``scratch_of`` gives
    the scratch buffer of each value that crosses in device memory and is not an output. ``variants`` of the only stage
    are for some lengths of its rows, which are known at launch. The first variant that serves is taken, and the stage
    if none does. ``schemes`` gives the scheme of every operator of the graph. ``shared`` is the size of a block's
    shared memory. ``own`` has the buffers of the values that every block has. Complete plans have both. ``ring`` holds
    weights of matrix units that are on their way or have arrived.
    """

    graph: StitchGraph
    device: DeviceModel
    phases: tuple[tuple[Stage, ...], ...]
    crossing: Crossing = field(default_factory=Crossing)
    grid: Grid | None = None
    scratch: tuple[Scratch, ...] = ()
    scratch_of: Mapping[Tensor, str] = field(default_factory=dict)
    retention: InterPhaseReuse | None = None
    variants: tuple[Variant, ...] = ()
    shared: SharedMemory = SharedMemory()
    own: Mapping[Tensor, SharedBuffer] = field(default_factory=dict)
    ring: WeightRing | None = None
    schemes: Mapping[Operator, Scheme] = field(default_factory=dict)

    @property
    def stages(self) -> list[Stage]:
        """All stages, phase by phase."""
        return [stage for stages in self.phases for stage in stages]

    @property
    def grid_wide(self) -> bool:
        """True if stages share a grid that is resident as a whole."""
        return self.grid is not None

    @property
    def stage(self) -> Stage:
        """The only stage of a plan that is not grid-wide."""
        ((stage,),) = self.phases
        return stage

    @property
    def shared_grid(self) -> Grid:
        """The launch of a grid-wide plan."""
        assert self.grid is not None, "the plan has one stage, whose mapping is its launch"
        return self.grid

    @property
    def cooperative(self) -> bool:
        """True if the kernel has a grid barrier."""
        if self.grid is not None:
            return self.grid.barriers and len(self.phases) > 1
        return self.stage.exchange is CrossBlockReduction.GRID
