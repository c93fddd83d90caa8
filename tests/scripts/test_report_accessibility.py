# SPDX-License-Identifier: Apache-2.0
"""The check of reports: what a page's script found as lines, missing tools, and a difference without empty headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import report_accessibility
from scripts._browser import find_browser


def test_findings_are_lines() -> None:
    found = {
        "violations": [["page", "color-contrast", 3, "<span>cuda</span>", "contrast of 4.39"]],
        "unreached": [".card by Enter"],
        "sideways": True,
    }
    assert report_accessibility.told(found, 390) == [
        "page: color-contrast, 3 times, such as <span>cuda</span> contrast of 4.39",
        "not reached by the keyboard: .card by Enter",
        "the page scrolls sideways at a width of 390",
    ]
    assert report_accessibility.told({"violations": [], "unreached": [], "sideways": False}, 390) == []


def test_missing_tools_and_pages_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_accessibility.main(["decoder", "--axe", str(tmp_path / "axe.js")]) == 2
    assert "npm install axe-core" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        report_accessibility.main(["poem"])
    assert "there is no page poem" in capsys.readouterr().err


@pytest.mark.skipif(find_browser() is None, reason="no Chromium found")
def test_a_stand_in_for_axe_sees_the_page() -> None:
    """It complains about a page without a heading. The keyboard reaches the kernels of a report."""
    axe = """
      const axe = { run: async () => ({ violations: document.querySelector("h1") ? [] :
        [{ id: "heading", nodes: [{ html: "<body>", any: [{ message: "none" }] }] }] }) };
    """
    bare = '<!doctype html><html lang="en"><head><title>t</title></head><body><p>text</p></body></html>'
    assert report_accessibility.findings(bare, axe, 1400, "light") == [
        "page: heading, 1 times, such as <body> none"
    ]
    from tests.report.samples import sample
    from tvm_stitch.report.html import html_page

    assert report_accessibility.findings(html_page(sample(), "encoder"), axe, 390, "dark") == []
