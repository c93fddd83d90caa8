# SPDX-License-Identifier: Apache-2.0
"""A difference of reports as text and as a page."""

from __future__ import annotations

import dataclasses
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..words import bytes_in_words, count_of, seconds_in_words
from .difference import Change, Difference, total_bytes, total_seconds
from .side import Opportunity, Side, SideKernel

MOST_CHANGES = 20
BOUNDS = "estimated times are lower bounds: they count bytes and launches, no arithmetic"
KINDS = ("stitched", "compute", "library", "tvm")

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;"
    "background:#fff}table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .8rem;"
    "border-bottom:1px solid #d0d7de;vertical-align:top;overflow-wrap:anywhere}"
    "td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,td{border-color:#30363d}}"
)


def difference_text(difference: Difference) -> str:
    """Return a difference as text: totals, changes, and the best opportunities of the second side."""
    names = (difference.before.name, difference.after.name)
    lines = [f"{names[0]} ({difference.before.target}) and {names[1]} ({difference.after.target})", ""]
    rows = _totals(difference)
    width = max(20, *(len(name) + 2 for name in names))
    lines.append(f"{'':20}{names[0]:>{width}}{names[1]:>{width}}")
    lines += [f"{title:20}{a:>{width}}{b:>{width}}" for title, a, b in rows]
    if _estimates(difference):
        lines.append(f"({BOUNDS})")
    lines += ["", f"{count_of(difference.equal, 'kernel')} unchanged; changes, the largest first:"]
    changes = _alike((_numbers(c), f"{_names(c.before)} -> {_names(c.after)}") for c in difference.changes)
    for (numbers, kernels), times in changes[:MOST_CHANGES]:
        lines += [f"  {numbers}{f', {times} alike' if times > 1 else ''}", f"      {kernels}"]
    if len(changes) > MOST_CHANGES:
        lines.append(f"  and {len(changes) - MOST_CHANGES} more")
    if not difference.changes:
        lines.append("  none")
    lines += ["", f"Best opportunities of {names[1]}:"]
    for number, each in enumerate(difference.opportunities, 1):
        lines.append(f"  {number}. {each.what}: {each.reason}")
        lines.append(f"     {_saving(each, difference.after)}{f'. {each.advice}' if each.advice else ''}")
    if not difference.opportunities:
        lines.append("  none: every boundary has to be, and no kernel moves more than it must")
    return "\n".join(lines)


def difference_page(difference: Difference, title: str) -> str:
    """Return a difference as a single HTML file without scripts.

    Args:
        found: the difference.
        title: name of the model, any text.
    """
    names = (difference.before.name, difference.after.name)
    changes = [
        [f"{kernels} ({times} alike)" if times > 1 else kernels, *cells]
        for (kernels, *cells), times in _alike(
            (_names(c.before), _names(c.after), *_pair(c.before, c.after, difference))
            for c in difference.changes
        )
    ]
    opportunities = [
        [o.what, o.reason, _saving(o, difference.after), o.advice] for o in difference.opportunities
    ]
    heading = html.escape(title)
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}: difference</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><main>',
        f"<h1>{heading}</h1>",
        _table("Totals", ["", *names], [list(row) for row in _totals(difference)]),
        f"<p>{html.escape(BOUNDS.capitalize())}.</p>" if _estimates(difference) else "",
        _table(f"Changes ({difference.equal} kernels are unchanged)", [*names, "bytes", "time"], changes),
        _table(
            f"Best opportunities of {names[1]}",
            ["kernels", "reason", "would save", "what to do"],
            opportunities,
        ),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _alike(rows: Iterable[tuple[str, ...]]) -> list[tuple[tuple[str, ...], int]]:
    """Return the different rows in their order, each with how often it occurs: layers of a model change alike."""
    return list(Counter(rows).items())


def plain(difference: Difference) -> dict[str, Any]:
    """Return a difference as JSON-able data."""

    def kernels(side: Sequence[SideKernel]) -> list[dict[str, Any]]:
        return [{**dataclasses.asdict(k), "operators": sorted(k.operators)} for k in side]

    return {
        "before": difference.before.name,
        "after": difference.after.name,
        "measured": not _estimates(difference),
        "totals": {title.strip(): [a, b] for title, a, b in _totals(difference)},
        "unchanged": difference.equal,
        "changes": [{"before": kernels(c.before), "after": kernels(c.after)} for c in difference.changes],
        "opportunities": [dataclasses.asdict(o) for o in difference.opportunities],
    }


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a heading. The first cell of each row is its header."""
    if not rows:
        return f"<h2>{html.escape(caption)}</h2><p>None.</p>"
    head = "".join(f'<th scope="col">{html.escape(each)}</th>' if each else "<td></td>" for each in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f"<h2>{html.escape(caption)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _totals(difference: Difference) -> list[tuple[str, str, str]]:
    sides = (difference.before, difference.after)
    rows = [("kernels", *(str(len(side.kernels)) for side in sides))]
    counts = [Counter(k.kind for k in side.kernels) for side in sides]
    rows += [(f"  {kind}", *(str(c[kind]) for c in counts)) for kind in KINDS if any(c[kind] for c in counts)]
    rows.append(("bytes moved", *(bytes_in_words(total_bytes(side.kernels)) for side in sides)))
    rows.append(("time in kernels", *(_time(side.kernels, side) for side in sides)))
    return [(title, a, b) for title, a, b in rows]


def _estimates(difference: Difference) -> bool:
    return not (difference.before.measured and difference.after.measured)


def _time(kernels: Sequence[SideKernel], side: Side) -> str:
    seconds = seconds_in_words(total_seconds(kernels))
    return seconds if side.measured or seconds == "?" else f"at least {seconds}"


def _pair(
    before: Sequence[SideKernel], after: Sequence[SideKernel], difference: Difference
) -> tuple[str, str]:
    sizes = [bytes_in_words(total_bytes(side)) for side in (before, after)]
    return " -> ".join(sizes), f"{_time(before, difference.before)} -> {_time(after, difference.after)}"


def _numbers(change: Change) -> str:
    moved = [bytes_in_words(total_bytes(side)) for side in (change.before, change.after)]
    times = [seconds_in_words(total_seconds(side)) for side in (change.before, change.after)]
    counts = f"{count_of(len(change.before), 'kernel')} -> {len(change.after)}"
    return f"{counts}: {moved[0]} -> {moved[1]}, {times[0]} -> {times[1]}"


def _names(kernels: Sequence[SideKernel]) -> str:
    counts = Counter(k.function for k in kernels)
    named = [f"{number} x {name}" if number > 1 else name for name, number in counts.items()]
    return ", ".join(named) or "nothing"


def _saving(each: Opportunity, side: Side) -> str:
    saved = bytes_in_words(each.bytes)
    if each.seconds is None:
        return saved
    return f"{saved}, {'' if side.measured else 'at least '}{seconds_in_words(each.seconds)}"
