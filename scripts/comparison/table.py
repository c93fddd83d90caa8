# SPDX-License-Identifier: Apache-2.0
"""A comparison as a markdown page: the table, the ratios, and the disclosed facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from comparison.results import Comparison, Record, Spread

#: The variants that the others are compared with, if they were measured.
_BASES = ("tuned", "stock")


def _spread(value: Spread | None) -> str:
    """Write milliseconds: the median, and in brackets the range."""
    if value is None:
        return "-"
    low, middle, high = value.milliseconds
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _kernels(pick: Callable[[Record], int]) -> Callable[[Record], str]:
    return lambda record: "-" if record.kernels is None else str(pick(record))


def _moved(record: Record) -> str:
    return "-" if record.kernels is None else f"{record.kernels.bytes_moved / 1e6:.2f}"


_ROWS: Sequence[tuple[str, Callable[[Record], str]]] = (
    ("memory-intensive kernels", _kernels(lambda r: r.kernels.memory_intensive if r.kernels else 0)),
    ("all kernels", _kernels(lambda r: r.kernels.total if r.kernels else 0)),
    ("memory-intensive part, ms", lambda r: _spread(r.memory_seconds)),
    ("whole, ms", lambda r: _spread(r.seconds)),
    ("moved by memory-intensive kernels, MB", _moved),
    ("tuning, s (trials)", lambda r: f"{r.tuning_seconds:.1f} ({r.trials})" if r.trials else "-"),
    ("compiling, s", lambda r: "-" if r.compile_seconds is None else f"{r.compile_seconds:.1f}"),
    ("largest error against float64", lambda r: "-" if r.error is None else f"{r.error:.2g}"),
)


def ratios(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the ratios of stitched variants to the tuned and the stock one, in words: (quantity, ratio)."""
    lines = []
    for record in comparison.records:
        for base_name in _BASES:
            base = comparison.record(base_name)
            if not record.name.startswith("stitched") or base is None:
                continue
            what = f"{record.title} against {base.title}"
            if record.kernels and base.kernels and base.kernels.memory_intensive:
                fewer = 1 - record.kernels.memory_intensive / base.kernels.memory_intensive
                lines.append((what, f"{100 * fewer:.0f}% fewer memory-intensive kernels"))
            if record.memory_seconds and base.memory_seconds and record.memory_seconds.median > 0:
                times = base.memory_seconds.median / record.memory_seconds.median
                lines.append((what, f"memory-intensive part {times:.2f} times as fast"))
            if record.seconds and base.seconds:
                lines.append((what, f"whole {base.seconds.median / record.seconds.median:.2f} times as fast"))
    return lines


def markdown(comparison: Comparison) -> str:
    """Write the page: a row for each figure, a column for each variant. Times are medians with the range of blocks."""
    head = ["", *(record.title for record in comparison.records)]
    body = [[label, *(cell(record) for record in comparison.records)] for label, cell in _ROWS]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"

    page = [f"# {comparison.workload} on {comparison.target}", ""]
    page += [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, body), ""]
    page += [f"- {record.title} failed: {record.problem}" for record in comparison.records if record.problem]
    page += [f"- {what}: {result}" for what, result in ratios(comparison)]
    page += ["", "## Conditions", ""]
    page += [f"- {key}: {value}" for key, value in comparison.facts.items()]
    page += [f"- {statement}" for statement in comparison.statements]
    return "\n".join(page) + "\n"
