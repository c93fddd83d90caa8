# SPDX-License-Identifier: Apache-2.0
"""The picture of stitching shows what the compiler does today."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from scripts import stitching_picture


def test_the_picture_is_up_to_date(tmp_path: Path) -> None:
    drawn = tmp_path / "stitching.svg"
    assert stitching_picture.main(["--output", str(drawn)]) == 0
    text = drawn.read_text(encoding="utf-8")
    assert text == stitching_picture.PICTURE.read_text(encoding="utf-8"), (
        "run: python scripts/stitching_picture.py"
    )
    boxes = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("rect")]
    assert len(boxes) == 1 + 7 + 1, "the ground, TVM's kernels and the stitched one"
