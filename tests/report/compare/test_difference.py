# SPDX-License-Identifier: Apache-2.0
"""Pairs of kernels of two reports, and the time that is left to gain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.samples import measured_sample, sample
from tvm_stitch.report.compare.difference import difference
from tvm_stitch.report.compare.side import Side, SideKernel, read, save, side_of, stock_side_of
from tvm_stitch.report.compare.views import difference_page, difference_text, plain


def kernel(function: str, operators: str, size: int, kind: str = "stitched") -> SideKernel:
    return SideKernel(function, kind, frozenset(operators.split()), size, size * 1e-9)


def side(name: str, *kernels: SideKernel, measured: bool = False) -> Side:
    return Side(name, "cuda sm_90", kernels, measured)


def test_kernels_that_share_operators_belong_together() -> None:
    before = side("before", kernel("f", "a b", 100), kernel("g", "c", 50), kernel("same", "d", 7))
    after = side("after", kernel("fg", "a b c", 60), kernel("same", "d", 7))
    found = difference(before, after)
    assert found.equal == 1
    (change,) = found.changes
    assert [k.function for k in change.before] == ["f", "g"]
    assert [k.function for k in change.after] == ["fg"]
    text = difference_text(found)
    assert "2 kernels -> 1: 150 B -> 60 B" in text and "f, g -> fg" in text and "1 kernel unchanged" in text


def test_other_traffic_and_other_times_are_changes() -> None:
    before = side("before", kernel("f", "a", 100))
    assert difference(before, side("after", kernel("f", "a", 90))).changes
    slower = SideKernel("f", "stitched", frozenset({"a"}), 100, 1.0)
    assert difference(before, side("after", slower)).changes
    assert not difference(before, side("after", slower, measured=True)).changes, "times always vary"


def test_kernels_of_stock_tvm_are_matched_by_name() -> None:
    before = side("stock", kernel("matmul", "", 9), kernel("max", "", 20), kernel("exp", "", 20))
    found = difference(before, side("after", kernel("matmul", "m", 9), kernel("softmax", "a", 12)))
    assert found.equal == 1
    assert [(len(c.before), len(c.after)) for c in found.changes] == [(2, 1)]


def test_opportunities_are_boundaries_with_advice_and_avoidable_traffic() -> None:
    found = side_of(sample().to_dict(), "after")
    assert [o.advice for o in found.opportunities if "|" in o.what] == ["Fix the dimensions"]
    extra = [o for o in found.opportunities if "more than each operand" in o.reason]
    assert extra and all(o.bytes > 0 for o in extra)
    seconds = [o.seconds or 0.0 for o in found.opportunities]
    assert seconds == sorted(seconds, reverse=True)


def test_estimates_are_lower_bounds_and_measured_times_are_not() -> None:
    one = side_of(sample().to_dict(), "after")
    text = difference_text(difference(one, one))
    assert "estimated times are lower bounds" in text and "at least" in text
    timed = side_of(measured_sample().to_dict(), "after")
    assert "lower bounds" not in difference_text(difference(timed, timed))


def test_a_page_shows_names_as_text() -> None:
    name = "<script>alert(1)</script>"
    found = difference(side("before", kernel(name, "a", 9)), side(name, kernel("f", "a", 8)))
    page = difference_page(found, name)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert page.count('scope="col"') >= 6 and 'lang="en"' in page and 'scope="row"' in page
    assert '<th scope="col"></th>' not in page  # a screen reader would say nothing
    assert plain(found)["changes"][0]["before"][0]["function"] == name


def test_changes_that_are_alike_are_shown_once() -> None:
    layers = ("a", "b", "c")
    before = side("before", *(kernel("f", name, 9) for name in layers))
    found = difference(before, side("after", *(kernel("f", name, 8) for name in layers)))
    assert len(found.changes) == 3
    assert difference_page(found, "m").count("f (3 alike)") == 1
    assert difference_text(found).count("f -> f") == 1 and ", 3 alike" in difference_text(found)


def test_a_saved_report_is_read_again(tmp_path: Path) -> None:
    data = sample().to_dict()
    save(data, tmp_path / "a.json")
    found = read(tmp_path / "a.json")
    assert found.name == "a.json" and found.kernels == side_of(data, "x").kernels
    assert not difference(found, side_of(data, "x")).changes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "is not a saved report"),
        ("[1]", "is not a report of this version"),
        ('{"format": "tvm_stitch report 1", "report": {"kernels": 3}}', "is not the data of a report"),
        ('{"format": "tvm_stitch report 1", "report": []}', "is not the data of a report"),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "b.json")


def test_a_report_without_stock_kernels_has_no_other_side() -> None:
    data = {**sample().to_dict(), "stock": None}
    with pytest.raises(ValueError, match="nothing to compare with"):
        stock_side_of(data)
