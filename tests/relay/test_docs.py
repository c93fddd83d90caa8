# SPDX-License-Identifier: Apache-2.0
"""The page on Relay is true: its Python runs, and prints what the page shows.

``python tests/relay/test_docs.py``, with a TVM that has Relay, writes what it prints into the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.test_docs import ROOT, run, update

PAGE = ROOT / "docs/relay.md"


def test_python_runs_and_prints_what_is_shown() -> None:
    shown = run(PAGE)
    assert len(shown) > 4
    for fence, printed in shown:
        where = f"docs/relay.md, line {fence.first + 1}; if it should: python tests/relay/test_docs.py"
        assert printed == fence.text, f"what is printed differs: {where}"


def test_reasons_are_those_that_the_sources_give() -> None:
    """Every reason in the page's table occurs in the sources, as far as it is fixed."""
    page = PAGE.read_text(encoding="utf-8")
    start = page.index("## What is left to TVM")
    table = page[start : page.index("```python", start)]
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tvm_stitch").rglob("*.py"))
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    assert len(rows) > 5
    for reason in re.findall(r"`([^`]+)`", " ".join(rows)):
        pieces = [piece.strip() for piece in reason.split("...")]
        assert [piece for piece in pieces if piece not in sources] == [], reason


if __name__ == "__main__":
    update(PAGE)
    print("docs/relay.md: up to date")
