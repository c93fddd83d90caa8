# SPDX-License-Identifier: Apache-2.0
"""Every reason that code gives is explained, and by the right rule."""

from __future__ import annotations

import pytest

from tvm_stitch.report.reasons import RULES, explained, plain
from tvm_stitch.scope.weigh import MORE_KERNELS


def guide_table() -> list[str]:
    """Return the lines of the user guide's table of reasons."""
    rows = [f"| {r.shown} | {r.meaning} | {r.advice} |" for r in RULES]
    return ["| Reason | What it means | What to do |", "|---|---|---|", *rows]


@pytest.mark.parametrize(
    ("reason", "meaning", "advice"),
    [
        ("compute-intensive", "A matmul", "ends stitch ops by definition"),
        (
            "x has a symbolic or empty shape, which a grid-wide plan does not serve",
            "cross blocks",
            "Fix the dim",
        ),
        ("reductions a and b have 16 and 32 rows", "one row domain", "two kernels are needed"),
        ("reduction a is read at [0], outside its own row", "another row", "two kernels are needed"),
        ("joining them would make a cycle through an operator outside", "comes back", "no kernel can wait"),
        ("401 operators exceed the limit of 400 (max_operators)", "full", "Raise max_operators"),
        ("it has more than 32 arguments (max_arguments)", "full", "Raise max_operators"),
        (
            "output y needs no reduction, and 1 rows of unknown length would leave the device idle; grid-wide: x",
            "symbolic length",
            "two kernels",
        ),
        ("block red_temp holds SeqStmt, not one store", "top-k", "extending.md"),
        (
            "TVM fuses them; as a stitch op of its own it would be one kernel more",
            "neighbour",
            "fewer kernels",
        ),
        ("one grid-wide kernel would take 9.1 us, apart they take 8.0 us", "barrier", "cost model"),
        (
            "one kernel, which reads or writes across memory, would take 9.1 us, apart they take 8.0 us",
            "far apart",
            "turns patches",
        ),
    ],
)
def test_reasons_are_explained(reason: str, meaning: str, advice: str) -> None:
    told = explained(reason)
    assert meaning in told[0] and advice in told[1]
    assert "`" not in told[0] + told[1] and "](" not in told[0] + told[1]


def test_an_unknown_reason_is_not() -> None:
    assert explained("the moon is full") == ("", "")


def test_reasons_of_the_sources_are_known() -> None:
    assert all(explained(MORE_KERNELS))


def test_the_table_has_a_row_for_each_rule() -> None:
    rows = guide_table()[2:]
    assert [row.count(" | ") for row in rows] == [2] * len(RULES)
    assert plain("see [this](#there), `so`") == "see this, so"
