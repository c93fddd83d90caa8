# SPDX-License-Identifier: Apache-2.0
"""The figures are what the tables in docs/results say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import plot_results  # noqa: E402

GPU = """
float32, batch 1    stitched  inductor-graphs  best peer/ours       memory-int.    error  PyTorch's
bert                    1.35            1.706            1.26    0.0967 / 0.216  8.5e-07    1.1e-06
vit-b16                2.011            2.137            1.06     0.143 / 0.123  7.4e-07    1.1e-06
geometric mean                                           1.16
"""
CPU = """
model            stitched  ONNX Runtime   PyTorch  best peer/ours    kernels  compile s     error  PyTorch's
bert-16             15.75         21.59     35.43            1.37    84 + 37        6.5   6.5e-07    1.1e-06
geometric mean                                              1.37

model            stitched  ONNX Runtime  best peer/ours    kernels  compile s     error  PyTorch's
lstm                 10.3         12.22            1.19    66 + 67        4.1   2.9e-07    2.5e-07
geometric mean                                    1.19
"""
CHAINS = """
case                             MB  kernels       us  TB/s  % of copy  stock/stitched  inductor/stitched
softmax                       536.9        1    127.3  4.22       99.5           10.79               1.00
rms_norm_quantize             939.7        1    224.6  4.18      100.5               -               1.19
encoder_layer                 129.0       14  14112.7  0.01        0.2            1.16               0.41
geometric mean                                                                    5.63               1.04
"""


def test_tables_of_models_are_read() -> None:
    (table,) = plot_results.tables(GPU)
    assert (table.name, table.ratios, table.mean) == (
        "float32, batch 1",
        {"bert": 1.26, "vit-b16": 1.06},
        1.16,
    )
    one, eight = plot_results.cpu_tables(CPU)
    assert (one.name, one.ratios, one.mean) == ("batch 1", {"bert-16": 1.37}, 1.37)
    assert (eight.name, eight.ratios) == ("batch 8", {"lstm": 1.19})


def test_tables_of_single_kernels_are_read() -> None:
    copy, inductor, stock = plot_results.chain_tables(CHAINS)
    assert copy.ratios == {"softmax": 0.995, "rms_norm_quantize": 1.005}
    assert inductor.ratios == {"softmax": 1.0, "rms_norm_quantize": 1.19, "encoder_layer": 0.41}
    assert stock.ratios == {"softmax": 10.79, "encoder_layer": 1.16}


def test_a_page_of_another_form_is_an_error() -> None:
    for text in (GPU.replace("geometric mean", "mean"), GPU.replace("best peer/ours", "ratio")):
        with pytest.raises(ValueError, match="no whole tables"):
            plot_results.tables(text)
    with pytest.raises(ValueError, match="no table of single kernels"):
        plot_results.chain_tables(CPU)
    with pytest.raises(ValueError, match=r"cpu\.md has no section 'Whole'"):
        plot_results.section("cpu.md", "Whole")


def test_every_row_is_drawn() -> None:
    sizes = [
        [len(table.ratios) for table in figure.read(plot_results.section(figure.page, figure.section))]
        for figure in plot_results.FIGURES
    ]
    assert sizes == [[13] * 4, [13, 10], [11, 12, 11]]


def test_the_figures_are_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot_results.main(["--output", str(tmp_path)]) == 0
    for figure in plot_results.FIGURES:
        drawn = (tmp_path / figure.file).read_text(encoding="utf-8")
        kept = (plot_results.IMAGES / figure.file).read_text(encoding="utf-8")
        assert drawn == kept, "run: python scripts/plot_results.py"
