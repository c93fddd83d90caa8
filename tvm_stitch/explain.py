# SPDX-License-Identifier: Apache-2.0
"""explain: the kernels a model becomes, each with its plan, and why every boundary between them stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from . import compat
from .config import StitchConfig, checked_config
from .device import resolve_target
from .graph.extent import Extent
from .plan.dominants import group, schemes
from .plan.memory import shared_bytes, traffic
from .plan.plan import StitchPlan


@dataclass
class Kernel:
    """One stitch op: plain data, ready to print or serialise."""

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


@dataclass
class Report:
    """What stitching does to a module on a target.

    ``left`` names functions left to TVM with the reason, ``boundaries`` the edges between kernels with theirs.
    """

    target: str
    kernels: list[Kernel] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    boundaries: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-able data."""
        return {
            "target": self.target,
            "kernels": [vars(k) for k in self.kernels],
            "left": self.left,
            "boundaries": self.boundaries,
        }

    def __str__(self) -> str:
        lines = [f"{len(self.kernels)} stitch ops for {self.target}"]
        for k in self.kernels:
            lines += ["", *_kernel_lines(k)]
        if self.left:
            lines += ["", "Left to TVM:"] + [f"  {n}: {r}" for n, r in self.left.items()]
        if self.boundaries:
            lines += ["", "Boundaries:"]
            lines += [f"  {b['producer']} | {b['consumer']}: {b['reason']}" for b in self.boundaries]
        return "\n".join(lines)


def _kernel_lines(k: Kernel) -> list[str]:
    m = k.mapping
    lines = [f"{k.name}: {len(k.operators)} operators, {k.rows} rows"]
    for g in k.groups:
        subs = f" (sub-dominant {', '.join(g['sub_dominants'])})" if g["sub_dominants"] else ""
        lines.append(f"  group of {g['dominant']}{subs}: {', '.join(g['members'])}")
    for o in k.operators:
        lines.append(f"    {o['operator']:<50} {o['class']:<18} {o['scheme']}")
    for i, p in enumerate(k.passes):
        reduced = f" reducing {', '.join(p['reduces'])}" if p["reduces"] else ""
        kept = f", keeping {', '.join(p['keeps'])}" if p["keeps"] else ""
        lines.append(f"  pass {i}: {p['columns']} columns{reduced}{kept}")
    lines.append("  mapping: " + ", ".join(f"{key} {value}" for key, value in m.items()))
    lines.append(f"  shared memory {k.shared_bytes} B; reads {k.bytes_read} B, writes {k.bytes_written} B")
    lines.append(f"  least possible traffic {k.bytes_least} B")
    return lines


def explain(mod: Any, target: Any = "cuda", config: StitchConfig | None = None) -> Report:
    """Report how ``mod`` is stitched for ``target``; nothing is compiled to machine code.

    Args:
        mod: a Relax IRModule, as given to :func:`tvm_stitch.compile`.
        target: a TVM target or its string.
        config: stitching options.
    """
    import tvm

    from .relax.pipeline import Recorder, stitch_passes

    target = resolve_target(target)
    recorder = Recorder()
    with target:
        tvm.transform.Sequential(stitch_passes(target, checked_config(config), recorder))(mod)
    report = Report(str(target), left=dict(recorder.declined))
    report.kernels = [describe(name, plan) for name, plan in recorder.plans.items()]
    report.boundaries = [vars(b) for b in recorder.boundaries]
    return report


def describe(name: str, plan: StitchPlan) -> Kernel:
    """A plan as plain data."""
    scheme = schemes(plan.graph)
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
        for g in group(plan.graph)
    ]
    kept = plan.schedule.kept_values
    passes = [
        {
            "columns": str(p.columns),
            "reduces": [op.name for op in p.reduces],
            "outputs": [key[0].output.name for key in p.outputs],
            "keeps": [k[0].output.name for k in p.values if k in kept],
        }
        for p in plan.schedule.passes
    ]
    moved = traffic(plan)
    domain = plan.alignment.domain
    return Kernel(
        name, operators, groups, "flat" if domain.flat else str(domain.rows), passes, plan.mapping.describe(),
        shared_bytes(plan), _plain(moved.read), _plain(moved.written), _plain(moved.least),
    )  # fmt: skip


def _plain(extent: Extent) -> Any:
    if isinstance(extent, int):
        return extent
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(compat.Analyzer().simplify(extent)))
