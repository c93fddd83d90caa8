# SPDX-License-Identifier: Apache-2.0
"""The README's figure is what the tables of docs/results.md say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import plot_results  # noqa: E402

PAGE = """
## Whole models on a GPU

float32, batch 1    stitched  inductor-graphs  best peer/ours       memory-int.    error  PyTorch's
bert                    1.35            1.706            1.26    0.0967 / 0.216  8.5e-07    1.1e-06
vit-b16                2.011            2.137            1.06     0.143 / 0.123  7.4e-07    1.1e-06
geometric mean                                           1.16

## Other
float16, batch 1    stitched  inductor-graphs  best peer/ours       memory-int.    error  PyTorch's
"""


def test_tables_are_read() -> None:
    (table,) = plot_results.tables(PAGE)
    assert (table.name, table.ratios, table.mean) == (
        "float32, batch 1",
        {"bert": 1.26, "vit-b16": 1.06},
        1.16,
    )


def test_a_page_of_another_form_is_an_error() -> None:
    for text in (PAGE.replace("geometric mean", "mean"), PAGE.replace("best peer/ours", "ratio")):
        with pytest.raises(ValueError, match="no whole tables"):
            plot_results.tables(text)


def test_the_page_has_thirteen_models_in_four_settings() -> None:
    found = plot_results.tables(plot_results.RESULTS.read_text(encoding="utf-8"))
    assert [len(table.ratios) for table in found] == [13] * 4


def test_the_figure_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot_results.main(["--output", str(tmp_path / "figure.svg")]) == 0
    drawn = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert drawn == plot_results.FIGURE.read_text(encoding="utf-8"), "run: python scripts/plot_results.py"
