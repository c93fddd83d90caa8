# SPDX-License-Identifier: Apache-2.0
"""Plans and boundaries as the plain data of reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from ..cost.sol import Load, Work, moving_seconds, seconds
from ..device import DeviceModel
from ..graph.dtype import item_bytes
from ..graph.extent import size_of, text_of
from ..graph.ir import Operator
from ..plan.gpu.mapping import CrossBlockReduction, RowMapping
from ..plan.iteration.loops import LoopNest
from ..plan.kernel import KernelPlan, Scratch, Stage, Variant
from ..plan.memory import stage_traffic, traffic
from ..plan.shared_memory import shared_bytes
from ..report.kernel import Kernel
from ..report.report import Report
from ..report.words import count_of
from ..scope.identified import Boundary


def report_of(
    target: str,
    plans: Mapping[str, KernelPlan],
    left: Mapping[str, str],
    boundaries: Iterable[Boundary],
    computed: Mapping[str, str],
) -> Report:
    """Return a Report of plans by kernel, reasons by the calls left to TVM, and boundaries."""
    kernels = [describe(name, plan) for name, plan in plans.items()]
    devices = sorted({_device(plan.device) for plan in plans.values()})
    edges = [{"producer": b.producer, "consumer": b.consumer, "reason": b.reason} for b in boundaries]
    return Report(target, kernels, dict(left), edges, ", ".join(devices), dict(computed))


def _device(device: DeviceModel) -> str:
    return f"{device.name}, {count_of(device.sms, 'multiprocessor' if device.is_gpu else 'core')}"


def describe(name: str, plan: KernelPlan) -> Kernel:
    """Return a plan as plain data."""
    operators = [
        {"operator": repr(op), "class": op.op_class.value, "scheme": plan.schemes[op].value}
        for op in plan.graph.operators
    ]
    group_data = [
        {
            "phase": number,
            "dominant": g.dominant.name,
            "sub_dominants": [op.name for op in g.sub_dominants],
            "members": [op.name for op in g.members],
        }
        for number, stages in enumerate(plan.phases)
        for stage in stages
        for g in stage.groups
    ]
    moved = traffic(plan)
    stage = None if plan.grid_wide else plan.stage
    return Kernel(
        name,
        operators,
        group_data,
        _rows(stage) if stage else "grid-wide",
        _passes(stage.schedule) if stage else [],
        _mapping(stage) if stage else {},
        shared_bytes(plan),
        moved.read,
        moved.written,
        moved.least,
        [] if stage else [_phase(plan, f) for f in range(len(plan.phases))],
        _scratch(plan),
        _launch(plan),
        _seconds(plan),
        [_variant(v) for v in plan.variants],
    )


def _variant(variant: Variant) -> dict[str, Any]:
    """Return the rows for which a variant is launched, and its mapping."""
    multiples = [f"{symbol.name} a multiple of {number}" for symbol, number in variant.multiples]
    rows = ", ".join([f"at most {variant.longest} columns", *multiples])
    return {"for rows of": rows, **_threads(variant.stage.row_mapping)}


def _mapping(stage: Stage) -> dict[str, Any]:
    early = [tensor.name for tensor, _ in stage.early]
    l2_resident = [tensor.name for tensor, _ in stage.l2_resident]
    rescaled = [op.name for op in stage.rescaled]
    return {
        **stage.mapping.describe(),
        **({"loaded before reductions": early} if early else {}),
        **({"evicted last from the second-level cache": l2_resident} if l2_resident else {}),
        **({"summed beside their warp's maximum": rescaled} if rescaled else {}),
    }


def _threads(mapping: RowMapping) -> dict[str, Any]:
    description = mapping.describe()
    return {key: description[key] for key in ("threads a row", "rows a block", "columns", "between passes")}


def _rows(stage: Stage) -> str:
    domain = stage.alignment.domain
    return "flat" if domain.flat else text_of(domain.rows)


def _seconds(plan: KernelPlan) -> float | None:
    """Return the cost model's estimate of a plan, or None for symbolic shapes. Launches count on a GPU only."""
    moved = [[stage_traffic(plan, stage).moved for stage in stages] for stages in plan.phases]
    if not all(isinstance(size, int) for sizes in moved for size in sizes):
        return None
    loads = [[Load(size) for size in sizes if isinstance(size, int)] for sizes in moved]
    shared = plan.grid_wide and plan.cooperative
    work = Work(loads, grid=plan.grid_wide, resident=shared, barriers=shared)
    return seconds(work, plan.device) if plan.device.is_gpu else moving_seconds(work, plan.device)


def _passes(sched: LoopNest) -> list[dict[str, Any]]:
    kept = sched.kept_values
    return [
        {
            "columns": text_of(p.columns),
            "reduces": [op.name for op in p.reduces],
            "reduces_across_rows": [op.name for op, _ in p.cross_row],
            "outputs": [key[0].output.name for key in p.outputs],
            "keeps": [k[0].output.name for k in p.values if k in kept],
        }
        for p in sched.passes
    ]


def _launch(plan: KernelPlan) -> dict[str, Any]:
    """Return the launch of a plan whose blocks wait for each other. Only such a launch is fixed."""
    if plan.grid is not None:
        barriers = len(plan.phases) - 1 if plan.cooperative else 0
        return {
            "blocks": plan.grid.blocks,
            "threads": plan.grid.threads,
            "blocks an SM": plan.grid.blocks_per_sm,
            "kernels": len(plan.phases) - barriers,
            "grid barriers": barriers,
        }
    stage = plan.stage
    if stage.exchange is CrossBlockReduction.NONE:
        return {}
    m = stage.row_mapping
    levels = sum(any(p.reduces for p in together) for together in stage.levels)
    return {
        "blocks": size_of(stage.alignment.domain.rows) * m.row_splits,
        "threads": m.block,
        "grid barriers": levels if plan.cooperative else 0,
        "cluster": 1 if plan.cooperative else m.row_splits,
    }


def _phase(plan: KernelPlan, number: int) -> dict[str, Any]:
    """Return the description of the work between two barriers."""
    done = [op.name for op, f in plan.crossing.scalars.items() if f == number - 1]
    stages = [_stage(plan, stage) for stage in plan.phases[number]]
    return {"phase": number, "finishes": done, "stages": stages}


def _stage(plan: KernelPlan, stage: Stage) -> dict[str, Any]:
    piece = stage.slice
    ends = [op for op in piece.roots if _finishes(plan, op)]
    moved = stage_traffic(plan, stage)
    return {
        "rows": _rows(stage),
        "replicated": piece.replicated,
        "hoists": [op.name for op, _ in stage.schedule.hoisted],
        "computes": [op.name for op in piece.roots if op not in piece.cross_row and op not in ends],
        "reduces_across_rows": [op.name for op in piece.roots if op in piece.cross_row],
        "finishes": [op.name for op in ends],
        "stores": [op.name for op in piece.roots if op in piece.stored],
        "retains": _retained(plan, stage, loads=True),
        "finds": _retained(plan, stage, loads=False),
        "passes": _passes(stage.schedule),
        "mapping": {
            **_threads(stage.row_mapping),
            "tasks": stage.tasks,
            "blocks": plan.shared_grid.blocks if piece.replicated else stage.stride * stage.tiles,
            "tiles of columns": stage.tiles,
            "tasks at once": stage.unroll,
            "from the last task": stage.backwards,
            **({"rows in turn": "one by one"} if stage.spread else {}),
            "in registers for all tasks": [leaf[0].name for leaf in stage.resident],
            **({"sums": taken} if (taken := stage.row_mapping.sums_taken) else {}),
        },
        "bytes_read": moved.read,
        "bytes_written": moved.written,
    }


def _retained(plan: KernelPlan, stage: Stage, loads: bool) -> list[str]:
    """Return inputs that a stage leaves on chip, or finds there."""
    kept = plan.retention
    if kept is None or stage not in kept.stages or (stage is kept.stages[0]) != loads:
        return []
    of = -(-stage.tasks // stage.stride)
    positions = f"{kept.shared} in shared memory, {kept.registers} in registers, of {of} tasks a block"
    return [f"{t.name} ({positions})" for t in kept.tensors]


def _finishes(plan: KernelPlan, op: Operator) -> bool:
    """Return whether an operator reduces the partial results of a reduction across rows."""
    partials = set(plan.crossing.partials.values())
    return op.is_reduce and any(t in partials for t in op.inputs)


def _scratch(plan: KernelPlan) -> list[dict[str, Any]]:
    owner = {op.output: op.name for op in plan.graph.operators}
    owner |= {t: f"{op.name}'s partials" for op, t in plan.crossing.partials.items()}
    holds: dict[str, list[str]] = {}
    for tensor, name in plan.scratch_of.items():
        holds.setdefault(name, []).append(owner[tensor])
    return [_buffer(s, holds.get(s.name, [])) for s in plan.scratch]


def _buffer(scratch: Scratch, holds: list[str]) -> dict[str, Any]:
    shape = [size_of(e) for e in scratch.shape]
    size = prod(shape) * item_bytes(scratch.dtype)
    return {"name": scratch.name, "shape": shape, "dtype": scratch.dtype, "bytes": size, "holds": holds}
