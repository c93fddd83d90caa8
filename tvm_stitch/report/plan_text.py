# SPDX-License-Identifier: Apache-2.0
"""The complete plan of a stitched kernel as text."""

from __future__ import annotations

from typing import Any

from .kernel import Kernel
from .words import count_of


def kernel_lines(k: Kernel) -> list[str]:
    extent = f"grid-wide, {count_of(len(k.phases), 'phase')}" if k.phases else rows_of(k.rows)
    lines = [f"{k.name}: {count_of(len(k.operators), 'operator')}, {extent}"]
    for g in k.groups:
        subs = f" (sub-dominant {', '.join(g['sub_dominants'])})" if g["sub_dominants"] else ""
        when = f" in phase {g['phase']}" if k.phases else ""
        lines.append(f"  group of {g['dominant']}{subs}{when}: {', '.join(g['members'])}")
    for o in k.operators:
        lines.append(f"    {o['operator']:<50} {o['class']:<18} {o['scheme']}")
    if k.phases:
        for phase in k.phases:
            lines += _phase_lines(phase)
    else:
        lines += _pass_lines(k.passes, "  ")
        lines += ["  variant: " + _pairs(variant) for variant in k.variants]
        lines.append(f"  {'otherwise' if k.variants else 'mapping'}: " + _pairs(k.mapping))
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
    for stage in phase["stages"]:
        actions = [f"{key.replace('_', ' ')} {', '.join(stage[key])}" for key in _STAGE_LISTS if stage[key]]
        who = "stage of every block" if stage["replicated"] else "stage"
        lines.append(f"    {who}, {rows_of(stage['rows'])}: {'; '.join(actions)}")
        lines += _pass_lines(stage["passes"], "      ")
        mapping = {key: v for key, v in stage["mapping"].items() if v != _USUAL.get(key)}
        lines.append("      mapping: " + _pairs(mapping))
        lines.append(f"      reads {stage['bytes_read']} B, writes {stage['bytes_written']} B")
    return lines


_STAGE_LISTS = ("hoists", "computes", "reduces_across_rows", "finishes", "stores", "retains", "finds")
"""The actions of a stage, in the order of the text."""

_USUAL: dict[str, object] = {
    "tiles of columns": 1,
    "tasks at once": 1,
    "from the last task": False,
    "in registers for all tasks": [],
}
"""Values of a stage's mapping that the text leaves out."""


_PASS_LISTS = {"reduces": " reducing", "reduces_across_rows": " reducing across rows", "keeps": ", keeping"}


def _pass_lines(passes: list[dict[str, Any]], indent: str) -> list[str]:
    lines = []
    for i, p in enumerate(passes):
        lines.append(f"{indent}pass {i}: {p['columns']} columns")
        for key, what in _PASS_LISTS.items():
            lines[-1] += f"{what} {', '.join(p[key])}" if p[key] else ""
    return lines


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def rows_of(rows: str) -> str:
    return rows if rows == "flat" else f"{rows} row{'' if rows == '1' else 's'}"
