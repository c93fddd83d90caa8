# SPDX-License-Identifier: Apache-2.0
"""Models that no converter honours as a whole are refused by name, and no page shows an import without that check."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.cli.helpers import run
from tests.importers.onnx.runs import floats, model
from tests.kept import kept_files
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel
from tvm_stitch.importers.onnx.misread import check_read, misread

ROOT = Path(__file__).resolve().parents[3]
ODD = model(helper.make_node("LeakyRelu", ["x"], ["y"], name="leak", beta=1.0), {"x": floats(3)})
WHOLE = model(helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.3), {"x": floats(3)})


def test_a_whole_model_is_taken() -> None:
    check_read(WHOLE)
    assert misread(model(helper.make_node("Relu", ["x"], ["y"]), {"x": floats(3)})) is None


def test_tvms_own_importer_is_not_trusted_with_what_it_drops() -> None:
    """``from_onnx`` of this package reads the attribute, TVM's does not."""
    proto = model(helper.make_node("IsInf", ["x"], ["y"], detect_positive=0), {"x": floats(3)})
    check_read(proto)
    text = misread(proto)
    assert text is not None and "node 0 (IsInf" in text and "importers.onnx.load.from_onnx" in text


def test_an_attribute_is_refused_by_name() -> None:
    text = "node 0 (LeakyRelu 'leak' of domain ai.onnx, opset 21): the attribute beta = 1.0 is not honoured; "
    with pytest.raises(UnsupportedModel) as raised:
        check_read(ODD)
    assert str(raised.value) == f"{text}export the model without this attribute"
    assert misread(ODD) is not None
    with pytest.raises(UnsupportedModel, match="the attribute beta = 1.0"):
        check_read(ODD)


def test_the_command_refuses_it_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = model(helper.make_node("Det", ["x"], ["y"], name="volume"), {"x": floats(2, 2)})
    path = tmp_path / "m.onnx"
    onnx.save(proto, str(path))
    code, stdout, stderr = run(capfd, "explain", path, "-q")
    assert code == 1 and stdout == ""
    (line,) = stderr.splitlines()
    assert f"{path} cannot be imported: node 0 (Det 'volume' of domain ai.onnx" in line


def test_pages_show_the_checked_import_only() -> None:
    """TVM's own ``from_onnx`` drops attributes silently, so no page and no example may show it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    pages += kept_files(ROOT / "examples")
    shown = [p for p in pages if "frontend.onnx import" in p.read_text(encoding="utf-8")]
    assert shown == []
    assert any("importers.onnx.load import from_onnx" in p.read_text(encoding="utf-8") for p in pages)
