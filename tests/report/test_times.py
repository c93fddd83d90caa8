# SPDX-License-Identifier: Apache-2.0
"""Measured times in words and as data."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.report.samples import measured_sample, sample
from tvm_stitch.report.data import Spread
from tvm_stitch.report.report import Report
from tvm_stitch.report.summary import summary
from tvm_stitch.report.times import measured_lines, stock_lines, time_lines, time_of, times_of
from tvm_stitch.report.words import seconds_in_words, spread_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(2.5, "2.5 s"), (0.0321, "32.1 ms"), (0.5, "500 ms"), (1.234e-4, "123 us"), (2e-6, "2 us"), (None, "?")],
)
def test_times_in_words(seconds: float | None, words: str) -> None:
    assert seconds_in_words(seconds) == words


def test_spreads_in_words() -> None:
    assert spread_in_words(Spread(0.002, 0.0015, 0.003)) == "2 ms (1.5 to 3 ms)"
    assert spread_in_words(Spread(0.001, 0.0005, 0.003)) == "1 ms (500 us to 3 ms)"


def test_what_was_measured_stands_beside_stock() -> None:
    lines = measured_lines(measured_sample())
    assert lines[0].startswith("measured on this CPU, 3 calls")
    # Kernels take 1 to 6 ms, of which 2 and 4 are products. TVM's own take 10, 20 and 30 ms, and the first is
    # one.
    assert lines[1] == "  stitched: 25 ms (24 to 26 ms) a call; kernels 21 ms, memory-intensive ones 15 ms"
    assert (
        lines[2]
        == "  TVM's own pipeline: 70 ms (69 to 71 ms) a call; kernels 60 ms, memory-intensive ones 50 ms"
    )
    assert measured_lines(sample()) == [] == time_lines(sample())


def test_kernels_that_took_longer_than_the_call_are_explained() -> None:
    report = measured_sample()
    short = dataclasses.replace(report.stitched, measured=Spread(0.020, 0.019, 0.022))
    lines = measured_lines(dataclasses.replace(report, stitched=short))
    assert lines[1].endswith("memory-intensive ones 15 ms; the machine was busier when kernels were timed")
    assert "busier" not in lines[2]


def test_equal_kernels_are_added_up() -> None:
    report = measured_sample()
    assert time_of([report.kernels[2], report.kernels[4]]) == ", 8 ms in all"
    assert time_of([report.kernels[0]]) == ", 1 ms"
    assert time_of([dataclasses.replace(report.kernels[0], measured=None)]) == ""
    assert stock_lines(report) == ["    2 x norm: 50 ms in all", "    1 x product: 10 ms"]


def test_the_summary_has_them() -> None:
    text = summary(measured_sample(), "", {})
    assert "    2 x norm: 1 operator, 4 rows, 320 B, the least 256 B, 8 ms in all; layer0..1.norm" in text
    assert "TVM's own kernels, by time\n    2 x norm: 50 ms in all" in text
    assert "measured" not in summary(sample(), "", {}) and " ms" not in summary(sample(), "", {})


def test_all_of_them_in_order() -> None:
    lines = time_lines(measured_sample())
    assert lines[lines.index("Kernels in order, stitched:") + 1] == "  first: 1 ms (900 us to 1.1 ms)"
    assert lines[lines.index("Kernels in order, TVM's own pipeline:") + 1] == "  product: 10 ms (9 to 11 ms)"
    assert lines[lines.index("  argmax: 6 ms (5.4 to 6.6 ms)") - 1].startswith("  norm: 5 ms")


def test_as_data() -> None:
    data = times_of(measured_sample())
    assert json.loads(json.dumps(data)) == data and data["on"] == "this CPU, 3 calls"
    assert data["stitched"]["call"]["median"] == 0.025 and len(data["stitched"]["kernels"]) == 6
    assert [k["seconds"]["median"] for k in data["stock"]["kernels"]] == pytest.approx([0.01, 0.02, 0.03])
    assert "measured" not in Report("llvm", model=sample()).to_dict()
    assert Report("llvm", model=measured_sample()).to_dict()["measured"] == data


def test_reports_that_know_no_model_measure_none() -> None:
    with pytest.raises(ValueError, match="no model to run"):
        Report("llvm").measure()
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        Report("llvm").measure(repeats=0)
