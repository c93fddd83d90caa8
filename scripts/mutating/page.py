# SPDX-License-Identifier: Apache-2.0
"""The page with the results of mutations, as a table between two marks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .mutations import Mutation, Outcome

MARKS = ("<!-- mutants -->", "<!-- /mutants -->")

Row = tuple[str, str]
"""Area and name of a mutation, which order a table."""


def table(outcomes: Sequence[Outcome], kept: Mapping[Row, str] | None = None) -> str:
    """Write a Markdown table, by area and name. ``kept`` are results of mutations that were not run."""
    results = dict(kept or {})
    for o in outcomes:
        result = f"equivalent: {o.detail}" if o.result == "equivalent" else o.result
        results[o.mutation.area, o.mutation.name] = result
    rows = ["| area | mutation | result |", "|---|---|---|"]
    rows += [f"| {area} | `{name}` | {result} |" for (area, name), result in sorted(results.items())]
    return "\n".join(rows) + "\n"


def rows_of(text: str) -> dict[Row, str]:
    """Read the results in a table."""
    results = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:4]]
        if len(cells) == 3 and cells[1].startswith("`"):
            results[cells[0], cells[1].strip("`")] = cells[2]
    return results


def summary(outcomes: Sequence[Outcome]) -> str:
    """Count the mutations by result."""
    results = [o.result for o in outcomes]
    return f"{len(results)} mutations: " + ", ".join(
        f"{results.count(r)} {r}" for r in sorted(set(results), key=results.index)
    )


def marked_page(page: Path) -> str:
    """Read the text of a page that has the marks of a table.

    Raises:
        ValueError: if it has none.
        OSError: if it cannot be read.
    """
    text = page.read_text(encoding="utf-8")
    if not all(text.count(mark) == 1 for mark in MARKS):
        raise ValueError(f"{page} needs the lines {' and '.join(MARKS)}, once each")
    return text


def write_table(page: Path, outcomes: Sequence[Outcome], known: Collection[Mutation]) -> None:
    """Put the table between the marks of a page. Rows of ``known`` mutations that were not run remain.

    Raises:
        ValueError: if the page has no marks.
    """
    text = marked_page(page)
    before, rest = text.split(MARKS[0])
    old, after = rest.split(MARKS[1])
    names = {(m.area, m.name) for m in known}
    kept = {row: result for row, result in rows_of(old).items() if row in names}
    page.write_text(f"{before}{MARKS[0]}\n{table(outcomes, kept)}{MARKS[1]}{after}", encoding="utf-8")
