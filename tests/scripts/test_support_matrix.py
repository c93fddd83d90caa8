# SPDX-License-Identifier: Apache-2.0
"""The support matrix has the compiler's decisions and the importers' tables. A difference is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import support_matrix


def test_the_page_is_up_to_date() -> None:
    assert support_matrix.main(["--check"]) == 0, "run: python scripts/support_matrix.py"


def test_a_page_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_matrix, "kernels_table", lambda *_: "one table")
    monkeypatch.setattr(support_matrix, "PAGE", tmp_path / "page.md")
    assert support_matrix.main(["--check"]) == 1
    assert support_matrix.main([]) == 0 == support_matrix.main(["--check"])
    assert "one table" in support_matrix.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [("softmax", "float32", "stitched"), ("sort", "float32", "TVM"), ("softmax", "int32", "–")],
)
def test_entries(name: str, dtype: str, wanted: str) -> None:
    (sample,) = [each for each in support_matrix.SAMPLES if each.name == name]
    assert support_matrix.entry(sample, dtype, "llvm", "auto") == wanted
