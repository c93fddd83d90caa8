# SPDX-License-Identifier: Apache-2.0
"""The page of ONNX operators is the tables' own, and the script notices a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import onnx_operators


def test_the_page_is_up_to_date() -> None:
    assert onnx_operators.main(["--check"]) == 0, "run: python scripts/onnx_operators.py"


def test_a_page_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = onnx_operators.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(onnx_operators, "PAGE", tmp_path / "page.md")
    onnx_operators.PAGE.write_text("old", encoding="utf-8")
    assert onnx_operators.main(["--check"]) == 1
    assert onnx_operators.main([]) == 0
    assert onnx_operators.PAGE.read_text(encoding="utf-8") == text
