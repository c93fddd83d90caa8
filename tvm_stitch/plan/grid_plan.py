# SPDX-License-Identifier: Apache-2.0
"""GridPlan: phases of parts on a grid that is resident as a whole, and which blocks and threads do what of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..device import DeviceModel
from ..graph.ir import StitchGraph, Tensor
from .gpu.partition import Partition
from .gpu.stages import Part
from .gpu.tile import RowMapping
from .gpu.workspace import Scratch
from .iteration.alignment import Alignment
from .iteration.loops import Leaf, LoopNest


@dataclass(frozen=True, eq=False)
class GridPart:
    """A part with its schedule and mapping.

    ``tasks`` groups of rows (or pieces of a flat domain) are shared out over ``stride`` blocks, ``unroll`` of them in
    one step; ``tiles`` pieces of the columns have blocks of their own; ``offset`` is the block of the first task.
    ``backwards``: a block takes its tasks from the last to the first, where the caches hold the end of what an earlier
    phase read. ``resident`` are inputs that all rows share, of which a thread keeps its columns for all of its tasks.
    """

    part: Part
    schedule: LoopNest
    mapping: RowMapping
    tasks: int
    stride: int
    tiles: int = 1
    offset: int = 0
    unroll: int = 1
    backwards: bool = False
    resident: tuple[Leaf, ...] = ()

    @property
    def graph(self) -> StitchGraph:
        """The part's own graph."""
        return self.part.graph

    @property
    def alignment(self) -> Alignment:
        """The part's alignment."""
        return self.part.alignment


@dataclass(frozen=True, eq=False)
class InterPhaseReuse:
    """Inputs of which every block keeps what its first tasks loaded, for the phases that read it again.

    ``tensors`` are inputs of the whole graph, ``parts`` those that read all of them, in order of their phases: the
    first one loads and the others find the elements where it left them, each thread its own. A block keeps ``shared``
    tasks in shared memory, of ``bytes`` each, and the ``registers`` next ones in registers.
    """

    tensors: tuple[Tensor, ...]
    parts: tuple[GridPart, ...]
    shared: int
    registers: int
    bytes: int

    @property
    def tasks(self) -> int:
        """Tasks of a block that are kept."""
        return self.shared + self.registers

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block that they take."""
        return self.shared * self.bytes


@dataclass(frozen=True)
class GridPlan:
    """Phases of parts, the launch, and the scratch between them.

    ``blocks`` of ``threads`` threads are launched, ``blocks_per_sm`` of them resident on each multiprocessor.
    ``place`` gives the scratch buffer of each global tensor that is not an output of the stitch op. Without
    ``barriers`` every phase is a kernel of its own.
    """

    graph: StitchGraph
    device: DeviceModel
    partition: Partition
    phases: Sequence[Sequence[GridPart]]
    threads: int
    blocks: int
    blocks_per_sm: int
    scratch: Sequence[Scratch] = ()
    place: Mapping[Tensor, str] = field(default_factory=dict)
    barriers: bool = True
    retention: InterPhaseReuse | None = None

    @property
    def cooperative(self) -> bool:
        """True when the kernel has a grid barrier."""
        return self.barriers and len(self.phases) > 1
