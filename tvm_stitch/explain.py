# SPDX-License-Identifier: Apache-2.0
"""explain: the kernels a model becomes, each with its plan, and why every boundary between them stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import compat
from .config import StitchConfig, checked_config
from .device import DeviceModel
from .graph.dtype import item_bytes
from .graph.extent import Extent, product
from .graph.ir import Operator
from .plan.dominants import crossing_tensors, final_schemes, group
from .plan.grid_memory import grid_shared_bytes, grid_traffic, part_traffic
from .plan.grid_plan import GridPart, GridPlan
from .plan.mapping import Exchange
from .plan.memory import shared_bytes, traffic
from .plan.passes import Schedule
from .plan.plan import StitchPlan
from .plan.scratch import Scratch
from .plan.splitting import partial_scratch
from .scope.identify import Boundary
from .target import resolve_target


@dataclass
class Kernel:
    """One stitch op: plain data, ready to print or serialise.

    On one row domain ``rows``, ``passes`` and ``mapping`` say how it runs. A grid-wide plan has ``phases`` instead,
    each with its parts, and ``rows`` is ``"grid-wide"``. ``scratch`` lists the buffers in device memory through which
    blocks hand on values, ``launch`` the blocks, threads and grid barriers where the plan fixes them.
    """

    name: str
    operators: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    rows: str
    passes: list[dict[str, Any]]
    mapping: dict[str, Any]
    shared_bytes: int
    bytes_read: Any
    bytes_written: Any
    bytes_least: Any
    phases: list[dict[str, Any]] = field(default_factory=list)
    scratch: list[dict[str, Any]] = field(default_factory=list)
    launch: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """What stitching does to a module on a target.

    ``left`` names functions left to TVM with the reason, ``boundaries`` the edges between kernels with theirs;
    ``computed`` says what computes each compute-intensive operator, and why, where a template was asked;
    ``device`` is the device model that the kernels are planned for, and its multiprocessors or cores.
    """

    target: str
    kernels: list[Kernel] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    boundaries: list[dict[str, str]] = field(default_factory=list)
    device: str = ""
    computed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data."""
        return {
            "target": self.target,
            "device": self.device,
            "kernels": [vars(k) for k in self.kernels],
            "computed": self.computed,
            "left": self.left,
            "boundaries": self.boundaries,
        }

    def __str__(self) -> str:
        lines = [f"{_count(len(self.kernels), 'stitch op')} for {self.target}"]
        if self.device:
            lines.append(f"planned for {self.device}")
        for k in self.kernels:
            lines += ["", *_kernel_lines(k)]
        if self.computed:
            lines += ["", "Compute-intensive operators:"] + [
                f"  {n}: {how}" for n, how in self.computed.items()
            ]
        if self.left:
            lines += ["", "Left to TVM:"] + [f"  {n}: {r}" for n, r in self.left.items()]
        if self.boundaries:
            lines += ["", "Boundaries:"]
            lines += [f"  {b['producer']} | {b['consumer']}: {b['reason']}" for b in self.boundaries]
        return "\n".join(lines)


def _kernel_lines(k: Kernel) -> list[str]:
    extent = f"grid-wide, {_count(len(k.phases), 'phase')}" if k.phases else _rows(k.rows)
    lines = [f"{k.name}: {_count(len(k.operators), 'operator')}, {extent}"]
    for g in k.groups:
        subs = f" (sub-dominant {', '.join(g['sub_dominants'])})" if g["sub_dominants"] else ""
        lines.append(f"  group of {g['dominant']}{subs}: {', '.join(g['members'])}")
    for o in k.operators:
        lines.append(f"    {o['operator']:<50} {o['class']:<18} {o['scheme']}")
    if k.phases:
        for phase in k.phases:
            lines += _phase_lines(phase)
    else:
        lines += _pass_lines(k.passes, "  ")
        lines.append("  mapping: " + _pairs(k.mapping))
    if k.launch:
        lines.append("  launch: " + _pairs(k.launch))
    for s in k.scratch:
        held = f" holds {', then '.join(s['holds'])}" if s["holds"] else ""
        lines.append(f"  {s['name']}: {s['bytes']} B of device memory{held}")
    lines.append(f"  shared memory {k.shared_bytes} B; reads {k.bytes_read} B, writes {k.bytes_written} B")
    lines.append(f"  least possible traffic {k.bytes_least} B")
    return lines


def _phase_lines(phase: dict[str, Any]) -> list[str]:
    lines = [f"  phase {phase['phase']}:"]
    if phase["finishes"]:
        lines.append(f"    every block finishes {', '.join(phase['finishes'])}")
    for part in phase["parts"]:
        told = [f"{key} {', '.join(part[key])}" for key in _PART_LISTS if part[key]]
        who = "part of every block" if part["replicated"] else "part"
        lines.append(f"    {who}, {_rows(part['rows'])}: {'; '.join(told)}")
        lines += _pass_lines(part["passes"], "      ")
        mapping = {key: v for key, v in part["mapping"].items() if v != _USUAL.get(key)}
        lines.append("      mapping: " + _pairs(mapping))
        lines.append(f"      reads {part['bytes_read']} B, writes {part['bytes_written']} B")
    return lines


_PART_LISTS = ("hoists", "computes", "folds", "finishes", "stores", "retains", "finds")
"""What a part does, in the order in which the text names it."""

_USUAL: dict[str, object] = {
    "tiles of columns": 1,
    "tasks at once": 1,
    "from the last task": False,
    "in registers for all tasks": [],
}
"""What the text leaves out of a part's mapping."""


def _pass_lines(passes: list[dict[str, Any]], indent: str) -> list[str]:
    lines = []
    for i, p in enumerate(passes):
        reduced = f" reducing {', '.join(p['reduces'])}" if p["reduces"] else ""
        reduced += f" folding {', '.join(p['folds'])}" if p["folds"] else ""
        kept = f", keeping {', '.join(p['keeps'])}" if p["keeps"] else ""
        lines.append(f"{indent}pass {i}: {p['columns']} columns{reduced}{kept}")
    return lines


def _pairs(found: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in found.items())


def _rows(rows: str) -> str:
    return rows if rows == "flat" else f"{rows} row{'' if rows == '1' else 's'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def explain(mod: Any, target: Any = "llvm", config: StitchConfig | None = None) -> Report:
    """Report how ``mod`` is stitched for ``target``; nothing is compiled to machine code.

    Args:
        mod: a Relax IRModule, as given to :func:`tvm_stitch.compile`.
        target: a TVM target or its string.
        config: stitching options.

    Raises:
        TypeError: when ``mod`` is no IRModule.
    """
    import tvm

    from .interrupts import watched
    from .recorder import Recorder
    from .relax.checked_module import checked_module
    from .relax.pipeline import planning_passes

    mod, target = checked_module(mod), resolve_target(target)
    recorder = Recorder()
    with target, watched():
        tvm.transform.Sequential(planning_passes(target, checked_config(config), recorder))(mod)
    return recorder.report()


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
        target, kernels, dict(left), [vars(b) for b in boundaries], ", ".join(devices), dict(computed)
    )


def _device(device: DeviceModel) -> str:
    return f"{device.name}, {_count(device.sms, 'multiprocessor' if device.is_gpu else 'core')}"


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
            _grid_launch(plan),
        )  # fmt: skip
    moved = traffic(plan)
    domain = plan.alignment.domain
    return Kernel(
        name, operators, groups, "flat" if domain.flat else str(domain.rows), _passes(plan.schedule),
        plan.mapping.describe(), shared_bytes(plan), _plain(moved.read), _plain(moved.written),
        _plain(moved.least), [], _row_scratch(plan), _row_launch(plan),
    )  # fmt: skip


def _passes(sched: Schedule) -> list[dict[str, Any]]:
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
    m = plan.mapping
    if m.exchange is Exchange.NONE:
        return {}
    levels = len({p.level for p in plan.schedule.passes if p.reduces})
    grid = m.exchange is Exchange.GRID
    return {
        "blocks": _plain(plan.alignment.domain.rows * m.segments),
        "threads": m.block,
        "grid barriers": levels if grid else 0,
        "cluster": 1 if grid else m.segments,
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
            "columns": {
                s: f"vectors of {c.vector} x {c.chunks} x {c.steps} steps" for s, c in m.columns.items()
            },
            "between passes": m.storage,
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
    held = partial_scratch(plan.schedule, plan.alignment.domain.rows, plan.mapping)
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
