# SPDX-License-Identifier: Apache-2.0
"""Plans and boundaries as the plain data of reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import compat
from .cost.sol import Load, Work, moving_seconds, seconds
from .device import DeviceModel
from .graph.dtype import item_bytes
from .graph.extent import Extent, product, total
from .graph.ir import Operator
from .plan.dominants import crossing_tensors, final_schemes, group
from .plan.gpu.split import partial_scratch
from .plan.gpu.tile import CrossBlockReduction
from .plan.gpu.workspace import Scratch
from .plan.grid_memory import grid_shared_bytes, grid_traffic, part_traffic
from .plan.grid_plan import GridPart, GridPlan
from .plan.iteration.loops import LoopNest
from .plan.memory import shared_bytes, traffic
from .plan.plan import StitchPlan
from .report.kernel import Kernel
from .report.report import Report
from .report.words import count_of
from .scope.identify import Boundary


def report_of(
    target: str,
    plans: Mapping[str, StitchPlan | GridPlan],
    left: Mapping[str, str],
    boundaries: Iterable[Boundary],
    computed: Mapping[str, str],
) -> Report:
    """A Report of plans by kernel, reasons by what was left to TVM, and boundaries."""
    kernels = [describe(name, plan) for name, plan in plans.items()]
    devices = sorted({_device(plan.device) for plan in plans.values()})
    return Report(
        target, kernels, dict(left), [_boundary(b) for b in boundaries], ", ".join(devices), dict(computed)
    )


def _boundary(found: Boundary) -> dict[str, str]:
    return {"producer": found.producer, "consumer": found.consumer, "reason": found.reason}


def _device(device: DeviceModel) -> str:
    return f"{device.name}, {count_of(device.sms, 'multiprocessor' if device.is_gpu else 'core')}"


def describe(name: str, plan: StitchPlan | GridPlan) -> Kernel:
    """A plan as plain data."""
    scheme = final_schemes(plan)
    operators = [
        {"operator": repr(op), "class": op.op_class.value, "scheme": scheme[op].value}
        for op in plan.graph.operators
    ]
    groups = [
        {
            "dominant": g.dominant.name,
            "sub_dominants": [op.name for op in g.sub_dominants],
            "members": [op.name for op in g.members],
        }
        for g in group(plan.graph, crossing_tensors(plan) if isinstance(plan, GridPlan) else ())
    ]
    if isinstance(plan, GridPlan):
        moved = grid_traffic(plan)
        return Kernel(
            name, operators, groups, "grid-wide", [], {}, grid_shared_bytes(plan), moved.read, moved.written,
            moved.least, [_phase(plan, f) for f in range(len(plan.phases))], _grid_scratch(plan),
            _grid_launch(plan), _grid_seconds(plan),
        )  # fmt: skip
    moved = traffic(plan)
    domain = plan.alignment.domain
    return Kernel(
        name, operators, groups, "flat" if domain.flat else str(domain.rows), _passes(plan.schedule),
        plan.mapping.describe(), shared_bytes(plan), _plain(moved.read), _plain(moved.written),
        _plain(moved.least), [], _row_scratch(plan), _row_launch(plan),
        _seconds([[total([moved.read, moved.written])]], plan.device),
    )  # fmt: skip


def _seconds(phases: Sequence[Sequence[Extent]], device: DeviceModel, **grid: bool) -> float | None:
    """What the cost model expects of parts side by side in phases that move so many bytes; launches are a GPU's."""
    loads = [[Load(size) for size in parts if isinstance(size, int)] for parts in phases]
    if any(len(ints) < len(parts) for ints, parts in zip(loads, phases)):
        return None
    work = Work(loads, **grid)
    return seconds(work, device) if device.is_gpu else moving_seconds(work, device)


def _grid_seconds(plan: GridPlan) -> float | None:
    moved = [[part_traffic(plan, part) for part in parts] for parts in plan.phases]
    sizes = [[total([m.read, m.written]) for m in parts] for parts in moved]
    resident = plan.cooperative and len(plan.phases) > 1
    return _seconds(sizes, plan.device, grid=True, resident=resident, barriers=plan.cooperative)


def _passes(sched: LoopNest) -> list[dict[str, Any]]:
    kept = sched.kept_values
    return [
        {
            "columns": str(p.columns),
            "reduces": [op.name for op in p.reduces],
            "folds": [op.name for op, _ in p.folds],
            "outputs": [key[0].output.name for key in p.outputs],
            "keeps": [k[0].output.name for k in p.values if k in kept],
        }
        for p in sched.passes
    ]


def _row_launch(plan: StitchPlan) -> dict[str, Any]:
    """The launch of a plan whose blocks wait for each other: it is fixed, other grids follow from the shapes."""
    if plan.exchange is CrossBlockReduction.NONE:
        return {}
    m = plan.row_mapping
    levels = len({p.level for p in plan.schedule.passes if p.reduces})
    grid = m.exchange is CrossBlockReduction.GRID
    return {
        "blocks": _plain(plan.alignment.domain.rows * m.row_splits),
        "threads": m.block,
        "grid barriers": levels if grid else 0,
        "cluster": 1 if grid else m.row_splits,
    }


def _grid_launch(plan: GridPlan) -> dict[str, Any]:
    barriers = len(plan.phases) - 1 if plan.cooperative else 0
    return {
        "blocks": plan.blocks,
        "threads": plan.threads,
        "blocks an SM": plan.blocks_per_sm,
        "kernels": len(plan.phases) - barriers,
        "grid barriers": barriers,
    }


def _phase(plan: GridPlan, number: int) -> dict[str, Any]:
    """What happens between two barriers."""
    done = [op.name for op, f in plan.partition.scalars.items() if f == number - 1]
    parts = [_part(plan, part) for part in plan.phases[number]]
    return {"phase": number, "finishes": done, "parts": parts}


def _part(plan: GridPlan, part: GridPart) -> dict[str, Any]:
    found, domain, m = part.part, part.alignment.domain, part.mapping
    ends = [op for op in found.roots if _finishes(plan, op)]
    moved = part_traffic(plan, part)
    return {
        "rows": "flat" if domain.flat else str(domain.rows),
        "replicated": found.replicated,
        "hoists": [op.name for op, _ in part.schedule.hoisted],
        "computes": [op.name for op in found.roots if op not in found.folds and op not in ends],
        "folds": [op.name for op in found.roots if op in found.folds],
        "finishes": [op.name for op in ends],
        "stores": [op.name for op in found.roots if op in found.stored],
        "retains": _retained(plan, part, loads=True),
        "finds": _retained(plan, part, loads=False),
        "passes": _passes(part.schedule),
        "mapping": {
            "threads a row": m.threads,
            "rows a block": m.rows_per_block,
            "columns": m.spaces,
            "between passes": m.storage.value,
            "tasks": part.tasks,
            "blocks": plan.blocks if found.replicated else part.stride * part.tiles,
            "tiles of columns": part.tiles,
            "tasks at once": part.unroll,
            "from the last task": part.backwards,
            "in registers for all tasks": [leaf[0].name for leaf in part.resident],
        },
        "bytes_read": moved.read,
        "bytes_written": moved.written,
    }


def _retained(plan: GridPlan, part: GridPart, loads: bool) -> list[str]:
    """Inputs that a part leaves on chip, or finds there."""
    kept = plan.retention
    if kept is None or part not in kept.parts or (part is kept.parts[0]) != loads:
        return []
    of = -(-part.tasks // part.stride)
    places = f"{kept.shared} in shared memory, {kept.registers} in registers, of {of} tasks a block"
    return [f"{t.name} ({places})" for t in kept.tensors]


def _finishes(plan: GridPlan, op: Operator) -> bool:
    """Does a root reduce the partial results of a reduction across rows?"""
    partials = set(plan.partition.partials.values())
    return op.is_reduce and any(t in partials for t in op.inputs)


def _row_scratch(plan: StitchPlan) -> list[dict[str, Any]]:
    if not plan.scratch:
        return []
    held = partial_scratch(plan.schedule, plan.alignment.domain.rows, plan.row_mapping)
    return [_buffer(s, [f"{op.name}'s partials"]) for op, s in held.items()]


def _grid_scratch(plan: GridPlan) -> list[dict[str, Any]]:
    owner = {op.output: op.name for op in plan.graph.operators}
    owner |= {t: f"{op.name}'s partials" for op, t in plan.partition.partials.items()}
    holds: dict[str, list[str]] = {}
    for tensor, name in plan.place.items():
        holds.setdefault(name, []).append(owner[tensor])
    return [_buffer(s, holds.get(s.name, [])) for s in plan.scratch]


def _buffer(scratch: Scratch, holds: list[str]) -> dict[str, Any]:
    shape = [_plain(e) for e in scratch.shape]
    size = _plain(product([*scratch.shape, item_bytes(scratch.dtype)]))
    return {"name": scratch.name, "shape": shape, "dtype": scratch.dtype, "bytes": size, "holds": holds}


def _plain(extent: Extent) -> Any:
    if isinstance(extent, int):
        return extent
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(compat.Analyzer().simplify(extent)))
