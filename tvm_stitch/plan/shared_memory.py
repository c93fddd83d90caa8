# SPDX-License-Identifier: Apache-2.0
"""Lay out a plan's shared memory: count its bytes, and name and size every buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from .. import compat
from ..device import DeviceModel
from ..graph.dtype import HALF, compute_dtype, exchanged_dtype, item_bytes
from ..graph.extent import static_extent
from ..graph.ir import Operator, Tensor
from ..graph.names import short_name
from .cpu.tile import CpuMapping
from .gpu.mapping import CrossBlockReduction, RowMapping
from .gpu.occupancy import OPT_IN_BYTES
from .gpu.patches import (
    copied_at_once,
    copies,
    patch_bytes_at_once,
    patch_elements,
    pieces,
    pitch,
    shared_columns,
)
from .gpu.tile import partial_bytes, stage_bytes
from .iteration.alignment import Key
from .iteration.loops import Leaf
from .kernel import InterPhaseReuse, KernelPlan, Stage
from .layout import ClusterSlots, CopiedPatch, LoadedPatch, SharedBuffer, SharedMemory, StageLayout

T = TypeVar("T")


def shared_bytes(plan: KernelPlan) -> int:
    """Return the bytes of a block's shared memory, static and dynamic."""
    static, dynamic = shared_parts(plan)
    return static + dynamic + _padding(static, dynamic, plan.device)


def shared_parts(plan: KernelPlan) -> tuple[int, int]:
    """Return the bytes of a block's static and dynamic shared memory.

    Static memory holds partial results of reductions, those of sums across rows too. Dynamic memory holds staged
    values. Buffers of one stage at a time are in use, and those of different kinds do not share memory. Values that
    every block has are added to the static memory, retained inputs and the ring of weights to the dynamic one.
    """
    if not plan.device.is_gpu:
        return 0, 0
    static = dynamic = factors = 0
    for stage in [*plan.stages, *(variant.stage for variant in plan.variants)]:
        m = stage.row_mapping
        scalars = [op for op, _ in stage.schedule.cross_row if op.output.size == 1]
        static = max(
            static, partial_bytes(stage.schedule, m, stage.rescaled), m.block // 32 * _words(scalars)
        )
        staged = stage_bytes(stage.schedule, m) if m.shared else 0
        factors = max(factors, 0 if m.matrix is None else m.matrix.shared_bytes(m.block // plan.device.warp))
        dynamic = max(dynamic, staged, _slots_bytes(stage), patch_bytes_at_once(stage.schedule, m))
    for f in range(len(plan.phases) if plan.grid else 0):
        done = [op for op, at in plan.crossing.scalars.items() if at == f]
        static = max(static, plan.shared_grid.threads // 32 * _words(done))
    kept = plan.retention.shared_bytes if plan.retention is not None else 0
    # A ring is in use from the first phase to the last one. Then no other buffer takes the memory of the factors.
    dynamic = max(dynamic, factors) if plan.ring is None else dynamic + plan.ring.buffer.bytes
    return static + own_bytes(plan), dynamic + kept


def _padding(static: int, dynamic: int, device: DeviceModel) -> int:
    most = static + dynamic + device.choices.shared_slack_bytes
    asked = dynamic == 0 or dynamic >= OPT_IN_BYTES or most <= OPT_IN_BYTES
    return 0 if asked else OPT_IN_BYTES - dynamic


def _slots_bytes(stage: Stage) -> int:
    """Return the bytes of the slots in which a block puts one chunk of column sums side by side."""
    m = stage.row_mapping
    if m.rows_per_block == 1:
        return 0
    sums = stage.column_reductions.items()
    return max((m.block * m.of(columns).vector * _words(ops) for columns, ops in sums), default=0)


def _words(ops: Sequence[Operator]) -> int:
    return sum(item_bytes(exchanged_dtype(op.output.dtype)) for op in ops)


# -- buffers -----------------------------------------------------------------------------------------------------
def with_layout(plan: KernelPlan) -> KernelPlan:
    """Return a complete plan with the layout of its shared memory. A plan for a CPU is returned as it is."""
    if not plan.device.is_gpu:
        return plan
    static, dynamic = shared_parts(plan)
    shared = SharedMemory(static, dynamic, _padding(static, dynamic, plan.device))

    def laid_out(stage: Stage, name: str) -> Stage:
        if plan.grid is None:
            return replace(stage, layout=_of_stage(stage, shared.padding))
        unused = shared.padding if plan.retention is None and plan.ring is None else 0
        layout = StageLayout(
            column_sums=_column_sums(stage, name, unused), matrix=_matrix(stage, plan.device, name, unused)
        )
        return replace(stage, layout=layout)

    new = {
        stage: laid_out(stage, f"{f}_{k}")
        for f, stages in enumerate(plan.phases)
        for k, stage in enumerate(stages)
    }
    retention = plan.retention
    if retention is not None:
        retention = replace(
            retention,
            stages=tuple(new[stage] for stage in retention.stages),
            buffers=tuple(_retained(plan, retention, shared.padding if plan.ring is None else 0)),
        )
    return replace(
        plan,
        phases=tuple(tuple(new[stage] for stage in stages) for stages in plan.phases),
        retention=retention,
        own=_own(plan),
        variants=tuple(replace(v, stage=laid_out(v.stage, "")) for v in plan.variants),
        shared=shared,
    )


def with_mapping(plan: KernelPlan, mapping: RowMapping | CpuMapping) -> KernelPlan:
    """Return a plan of one stage with another mapping, and with its shared memory laid out for that."""
    return with_layout(replace(plan, phases=((replace(plan.stage, mapping=mapping),),)))


def own_bytes(plan: KernelPlan) -> int:
    """Return the bytes of the values that every block has."""
    return sum(buffer.bytes for buffer in {buffer.name: buffer for buffer in _own(plan).values()}.values())


def _own(plan: KernelPlan) -> dict[Tensor, SharedBuffer]:
    """Return the buffer of each value that every block has.

    Values of one type share a buffer if the last phase that reads one is before the phase that makes the other.
    """
    buffers: list[SharedBuffer] = []
    busy: list[int] = []  # the last phase that reads a buffer
    position: dict[Tensor, int] = {}
    for tensor, phase in sorted(plan.crossing.shared.items(), key=lambda entry: entry[1]):
        elements, dtype = static_extent(tensor.size), own_dtype(tensor)
        k = next((k for k, b in enumerate(buffers) if busy[k] < phase and b.dtype == dtype), len(buffers))
        if k == len(buffers):
            buffers.append(SharedBuffer(f"own_{k}", 0, dtype))
            busy.append(phase)
        readers = [f for f, stages in enumerate(plan.phases) for s in stages if tensor in s.slice.tensors]
        buffers[k] = replace(buffers[k], elements=max(buffers[k].elements, elements))
        busy[k], position[tensor] = max(readers, default=phase), k
    return {tensor: buffers[k] for tensor, k in position.items()}


def own_dtype(tensor: Tensor) -> str:
    """Return the type in which a block keeps a value: a half type if the value is rounded to it, else as computed."""
    producer = tensor.producer
    rounded = producer is not None and not producer.is_reduce and compat.kind(producer.value) == "Cast"
    return tensor.dtype if rounded and tensor.dtype in HALF else compute_dtype(tensor.dtype)


def _of_stage(stage: Stage, unused: int) -> StageLayout:
    """Return the layout of a stage that is a kernel of its own, with ``unused`` bytes behind its first buffer."""
    m, sched = stage.row_mapping, stage.schedule
    layout = StageLayout(slots=cluster_slots(stage))
    if m.workers:
        patches = {leaf: _copied_patch(stage, leaf) for leaf in m.transposed}
        columns = {
            leaf: SharedBuffer(f"{leaf[0].name}_kept", m.block_columns(leaf[1].columns), leaf[0].dtype)
            for leaf in shared_columns(sched, m)
        }
        patch = patches[m.transposed[0]]
        patches[m.transposed[0]] = replace(patch, buffer=replace(patch.buffer, unused=unused))
        return replace(layout, copied_patches=patches, shared_columns=columns)
    if m.transposed:  # Each patch uses the memory of the one before, so the largest must have the padding.
        return replace(
            layout, loaded_patches={leaf: _loaded_patch(stage, leaf, unused) for leaf in m.transposed}
        )
    if not m.shared:
        return layout
    copied = dict(_copies(stage)) if m.async_copies else {}
    staged = dict(_staged(stage, copied))
    if copied:
        first = next(iter(copied))
        copied[first] = replace(copied[first], unused=unused)
    elif staged:
        key = next(iter(staged))
        staged[key] = replace(staged[key], unused=unused)
    return replace(layout, copies=copied, staged=staged)


def _loaded_patch(stage: Stage, leaf: Leaf, unused: int) -> LoadedPatch:
    m, tensor = stage.row_mapping, leaf[0]
    columns = m.of(leaf[1].columns)
    loads = columns.chunks * columns.vector
    at_once = max(n for n in range(1, stage.alignment.choices.transposed_loads + 1) if loads % n == 0)
    buffer = SharedBuffer(f"{tensor.name}_patch", patch_elements(m, leaf), tensor.dtype, unused)
    return LoadedPatch(buffer, pitch(m, leaf), at_once)


def _copied_patch(stage: Stage, leaf: Leaf) -> CopiedPatch:
    m, tensor = stage.row_mapping, leaf[0]
    buffer = SharedBuffer(f"{tensor.name}_patch", patch_elements(m, leaf), tensor.dtype)
    count, last = copies(m, leaf), stage.schedule.passes[-1]
    # All at once would fill the queue of the first-level cache: the other half is begun among a thread's stores.
    early = count if last.reduces or not last.outputs else -(-count // 2)
    return CopiedPatch(buffer, pieces(m, leaf), copied_at_once(m, leaf), count, early)


def _copies(stage: Stage) -> Iterator[tuple[Leaf, SharedBuffer]]:
    """Yield the inputs that cp.async stages: those that stay, of static rows, in accesses of 4, 8 or 16 bytes.

    The number of rows is static, because a copy cannot be predicated for a row that does not exist.
    """
    if not isinstance(stage.alignment.domain.rows, int):
        return
    for tensor, point in _once(leaf for p in stage.schedule.passes for leaf in p.loads):
        leaf = (tensor, point)
        if leaf in stage.schedule.kept_loads:
            if stage.load_elements(leaf, tensor.dtype) * item_bytes(tensor.dtype) in (4, 8, 16):
                columns = stage.row_mapping.block_columns(stage.schedule.loading(leaf).columns)
                yield leaf, SharedBuffer(f"{tensor.name}_copy", columns, tensor.dtype)


def _staged(stage: Stage, copied: Collection[Leaf]) -> Iterator[tuple[Key | Leaf, SharedBuffer]]:
    """Yield kept values, and kept inputs that are not ``copied``, in the order in which passes need them."""
    m, sched = stage.row_mapping, stage.schedule
    for key in _once(key for p in sched.passes for key in p.values):
        if key in sched.kept_values:
            op, point = key
            columns = m.block_columns(point.columns)
            yield key, SharedBuffer(short_name(op), columns, compute_dtype(op.output.dtype))
    for leaf in _once(leaf for p in sched.passes for leaf in p.loads):
        if leaf in sched.kept_loads and leaf not in copied:
            columns = m.block_columns(leaf[1].columns)
            yield leaf, SharedBuffer(f"{leaf[0].name}_stage", columns, leaf[0].dtype)


def cluster_slots(stage: Stage) -> ClusterSlots | None:
    """Return the slots of a stage whose rows the blocks of a cluster share, None for other stages."""
    m = stage.row_mapping
    if m.exchange is not CrossBlockReduction.CLUSTER:
        return None
    levels = [ops for together in stage.levels if (ops := [op for p in together for op in p.reduces])]
    position = {op: i for i, op in enumerate(op for ops in levels for op in ops)}
    level = {op: i for i, ops in enumerate(levels) for op in ops}
    bits = 8 * max(item_bytes(exchanged_dtype(op.output.dtype)) for op in position)
    return ClusterSlots(m.iterations, m.rows_per_block, m.row_splits, m.warps, bits, position, level)


def _column_sums(stage: Stage, name: str, unused: int) -> dict[Operator, SharedBuffer]:
    """Return a buffer for each reduction across rows, in which the rows of a block add up the sums of its columns.

    Each buffer has a name of its own, because TVM's merging of shared memory declares all of them in one scope. The
    buffers of one column space are in use together. Those of the next space take the same memory, so that the first
    buffer of each space has the ``unused`` bytes.
    """
    m = stage.row_mapping
    if m.rows_per_block == 1:
        return {}
    buffers: dict[Operator, SharedBuffer] = {}
    for extent, ops in stage.column_reductions.items():
        elements = m.block * m.of(extent).vector
        for i, op in enumerate(ops):
            dtype = exchanged_dtype(op.output.dtype)
            buffers[op] = SharedBuffer(f"slots_{name}_{extent}_{i}", elements, dtype, 0 if i else unused)
    return buffers


def _matrix(stage: Stage, device: DeviceModel, name: str, unused: int) -> SharedBuffer | None:
    """Return the buffer of a stage whose sums matrix units take, None for others."""
    m = stage.row_mapping
    if m.matrix is None:
        return None
    elements = m.matrix.shared_bytes(m.block // device.warp) // item_bytes(m.matrix.dtype)
    return SharedBuffer(f"factors_{name}", elements, m.matrix.dtype, unused)


def _retained(plan: KernelPlan, retention: InterPhaseReuse, unused: int) -> Iterator[SharedBuffer]:
    """Yield a buffer for each retained input, if tasks stay in shared memory."""
    first = retention.stages[0]
    m = first.row_mapping.of(first.schedule.passes[0].columns)
    elements = retention.shared * plan.shared_grid.threads * m.vector * m.chunks
    for i, tensor in enumerate(retention.tensors if retention.shared else ()):
        yield SharedBuffer(f"retained_{i}", elements, tensor.dtype, 0 if i else unused)


def _once(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
