# SPDX-License-Identifier: Apache-2.0
"""The report on one screen: equal kernels once, boundaries by reason, and their source in the model."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .data import KernelCall, ModelReport, Reason, add_sizes
from .times import measured_lines, stock_lines, time_of
from .words import bytes_in_words, count_of

LINES = 50
MOST_REPEATS = 4
MOST_FUNCTIONS = 6
LEAST_ALIKE = 3
"""Fewest kernels to show in one line if only a number in their names differs."""
WIDTH = 118
KINDS = {
    "stitched": "Stitched kernels",
    "compute": "Kernels around a compute-intensive operator",
    "library": "Calls of functions outside the module",
    "tvm": "Kernels left to TVM",
}
"""The kinds of kernels, each with its heading."""
_Equal = tuple[str, str, str]
"""Key of calls that share a line: the function, its note, and its traffic."""


def summary(report: ModelReport, device: str, computed: Mapping[str, str]) -> str:
    """Return the report in about 50 lines, whatever the size of the model.

    Args:
        report: the report.
        device: the device of the plans, in words.
        computed: the recorded implementations of compute-intensive operators.
    """
    kinds = Counter(str(k.kind) for k in report.kernels)
    stitched = Counter(k.function for k in report.kernels if k.kind == "stitched")
    counts = [
        f"{kinds['stitched']} stitched" + (f" ({len(stitched)} different)" if kinds["stitched"] else "")
    ]
    words = {
        "compute": "around a compute-intensive operator",
        "library": "of libraries",
        "tvm": "left to TVM",
    }
    counts += [f"{kinds[kind]} {words[kind]}" for kind in words if kinds[kind]]
    callers = Counter(k.caller for k in report.kernels)
    of_what = "a call" if len(callers) < 2 else f"in all {len(callers)} functions"
    headline = f"{count_of(len(report.kernels), 'kernel')} {of_what}: {', '.join(counts)}"
    if report.kernels:
        headline += f"; {bytes_in_words(report.stitched.bytes)} moved"
    lines = [_cut(f"{report.target}{f', planned for {device}' if device else ''}")]
    lines += textwrap.wrap(headline, WIDTH, subsequent_indent="  ")
    if len(callers) > 1:
        lines += _most([_cut(_function(report, *caller)) for caller in callers.items()], MOST_FUNCTIONS)
    lines += [_cut(line) for line in measured_lines(report)]
    for repeat in report.repeats[:MOST_REPEATS]:
        same = f"{repeat.count} times the same {count_of(repeat.length, 'kernel')}"
        lines.append(_cut(f"{same} from {_place(report, repeat.first)} on"))
    sections = [_kernels(report, kind, heading) for kind, heading in KINDS.items()]
    if computed and not kinds["compute"] + kinds["library"]:
        counts = [_cut(f"  {name}: {how}") for name, how in computed.items()]
        sections.append(("Compute-intensive operators", counts))
    noted = {k.note for k in report.kernels if k.kind == "tvm"}
    left = [_cut(f"  {name}: {why}") for name, why in report.left.items() if why not in noted]
    sections.append(("No stitch op takes", left))
    sections.append(("Boundaries, by reason", _boundaries(report.boundaries)))
    if report.measured_on:
        sections.append(("TVM's own kernels, by time", [_cut(line) for line in stock_lines(report)]))
    sections = [(heading, rows) for heading, rows in sections if rows]
    room = LINES - len(lines) - 2 * len(sections)
    for (heading, rows), most in zip(sections, _shares([len(rows) for _, rows in sections], room)):
        lines += ["", heading, *_most(rows, most)]
    return "\n".join(lines)


def _function(report: ModelReport, name: str, kernels: int) -> str:
    """Return a line about the launches and traffic of one call of a function."""
    moved = add_sizes(*(k.bytes_moved for k in report.kernels if k.caller == name))
    return f"  a call of {name}: {count_of(kernels, 'kernel')}; {bytes_in_words(moved)} moved"


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return the number of lines of each section. Short sections keep all lines, the others share the rest."""
    shares = [0] * len(wanted)
    for done, i in enumerate(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        shares[i] = min(wanted[i], max(2, room // (len(wanted) - done)))
        room -= shares[i]
    return shares


def _place(report: ModelReport, kernel: int) -> str:
    sources = _sources(report, [report.kernels[kernel]])
    return sources[0] if sources else report.kernels[kernel].function


def _kernels(report: ModelReport, kind: str, heading: str) -> tuple[str, list[str]]:
    """Return a heading, and a line for each different kernel, with its note if notes differ."""
    calls: dict[_Equal, list[KernelCall]] = {}
    for kernel in report.kernels:
        if kernel.kind == kind:
            calls.setdefault((kernel.function, kernel.note, _described(report, kernel)), []).append(kernel)
    lines, notes = [], {note for _, note, _ in calls}
    for name, note, same in _alike(report, calls):
        lines.append(_cut(f"  {len(same):3} x {name}: {_described(report, same[0])}{time_of(same)}"))
        if sources := _sources(report, same):
            lines[-1] = _cut(f"{lines[-1]}; {_named(sources)}")
        if note and len(notes) > 1:
            lines.append(_cut(f"        {note}"))
    if lines and len(notes) == 1 and (shared := notes.pop()):
        if len(heading) + len(shared) + 3 <= WIDTH:
            return f"{heading} ({shared})", lines
        lines.insert(0, _cut(f"  {shared}"))
    return heading, lines


def _alike(
    report: ModelReport, calls: Mapping[_Equal, list[KernelCall]]
) -> list[tuple[str, str, list[KernelCall]]]:
    """Return kernels with notes and calls. Kernels of a loop's steps, which differ by a number in the name, are
    merged.
    """
    families: dict[_Equal, list[str]] = {}
    for function, note, moved in calls:
        family = re.sub(r"\d+", "#", function), note, moved
        families.setdefault(family, []).append(function)
    merged = []
    for (_, note, moved), functions in families.items():
        names = _range(functions)
        if len(functions) >= LEAST_ALIKE and len(names) == 1:
            of_all = [k for function in functions for k in calls[function, note, moved]]
            merged.append((f"{names[0]} ({len(functions)} alike)", note, of_all))
        else:
            merged += [(function, note, calls[function, note, moved]) for function in functions]
    return merged


def _described(report: ModelReport, kernel: KernelCall) -> str:
    plan = report.plans.get(kernel.function)
    if plan is None:
        return bytes_in_words(kernel.bytes_least)
    moved = bytes_in_words(kernel.bytes_moved)
    if kernel.bytes_moved != kernel.bytes_least:
        moved += f", the least {bytes_in_words(kernel.bytes_least)}"
    rows = plan["rows"] if plan["rows"] in ("flat", "grid-wide") else f"{plan['rows']} rows"
    rows = "1 row" if rows == "1 rows" else rows
    return f"{count_of(len(plan['operators']), 'operator')}, {rows}, {moved}"


def _sources(report: ModelReport, kernels: Iterable[KernelCall]) -> list[str]:
    """Return the labels of the last operator of each call, which is the one it passes on."""
    return list(dict.fromkeys(report.operators[k.operators[-1]].label for k in kernels if k.operators))


def _named(names: Sequence[str]) -> str:
    """Return names in short: a range for names that differ by one number, else the names of their modules."""
    patterns: dict[str, list[str]] = {}
    for name in names:
        patterns.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    return ", ".join(dict.fromkeys(text for same in patterns.values() for text in _range(same)))


def _range(same: Sequence[str]) -> Sequence[str]:
    columns = list(zip(*(re.findall(r"\d+", name) for name in same)))
    varying = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if len(varying) > 1 and all("/" in name for name in same):
        return [_named([name.rpartition("/")[0] for name in same])]
    if len(varying) != 1:
        return same
    ends = [c[0] if i != varying[0] else f"{c[0]}..{c[-1]}" for i, c in enumerate(columns)]
    pieces = re.split(r"\d+", same[0])
    return ["".join(piece + end for piece, end in zip(pieces, [*ends, ""]))]


def _boundaries(boundaries: Sequence[Reason]) -> list[str]:
    groups: dict[str, list[Reason]] = {}
    for b in boundaries:
        groups.setdefault(re.sub(r"\d+(\.\d+)?", "N", b.text), []).append(b)
    lines = []
    for same in sorted(groups.values(), key=len, reverse=True):
        pairs = Counter(f"{b.producer} | {b.consumer}" for b in same)
        texts = list(dict.fromkeys(b.text for b in same))
        several = _range(texts) if len(texts) > 1 else texts
        text = several[0] if len(several) == 1 else f"{texts[0]}, and {len(texts) - 1} like it"
        lines.append(_cut(f"  {len(same):3} x {text} ({', '.join(pairs)})"))
    return lines


def _most(lines: list[str], number: int) -> list[str]:
    if len(lines) <= number:
        return lines
    return [*lines[: number - 1], f"      and {len(lines) - number + 1} more (--verbose)"]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3].rstrip()}..."
