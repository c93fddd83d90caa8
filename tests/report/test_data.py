# SPDX-License-Identifier: Apache-2.0
"""The report's data: frozen, JSON-able, and sums of sizes that may be symbolic or unknown."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.report.samples import sample
from tvm_stitch.graph.sizes import named
from tvm_stitch.report.bare import bare_report
from tvm_stitch.report.data import Bytes, add_sizes
from tvm_stitch.report.kernel import Kernel
from tvm_stitch.report.report import Report
from tvm_stitch.report.trace import trace
from tvm_stitch.report.words import bytes_in_words


def test_reports_are_json() -> None:
    data = json.loads(json.dumps(sample().to_dict()))
    assert data["kernels"][2]["function"] == "norm" and data["edges"][4]["reasons"][0]["advice"]
    assert data["stock"]["kernels"] == 9


def test_symbolic_sizes_are_text_in_json() -> None:
    kernel = Kernel("norm", [], [], "n", [], {}, 8, named("n") * 32, named("n") * 16, named("n") * 48)
    model = bare_report("llvm", "cpu", [kernel], {}, ())
    data = json.loads(json.dumps(model.to_dict()))
    assert data["kernels"][0]["bytes_read"] == data["plans"]["norm"]["bytes_read"] == "n * 32"
    assert data["stitched"]["bytes"] == "n * 48"
    report = json.loads(json.dumps(Report("llvm", [kernel]).to_dict()))
    assert report["kernels"][0]["bytes_least"] == "n * 48"
    (event,) = [e for e in json.loads(json.dumps(trace(model)))["traceEvents"] if e["ph"] == "X"]
    assert event["args"]["bytes moved"] == "n * 48"


def test_reports_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample().device = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ((), 0),
        ((1, 2), 3),
        ((1, None), None),
        ((0, named("n") * 4, 8), named("n") * 4 + 8),
        ((named("n"), None), None),
    ],
)
def test_sums_of_sizes(sizes: tuple[Bytes, ...], total: Bytes) -> None:
    assert add_sizes(*sizes) == total


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (98_765_432, "98.8 MB"),
        (named("n") * 4, "n * 4 B"),
        (None, "?"),
    ],
)
def test_sizes_in_words(size: Bytes, words: str) -> None:
    assert bytes_in_words(size) == words


def test_what_a_kernel_moves() -> None:
    first, product = sample().kernels[:2]
    assert (first.bytes_moved, product.bytes_moved) == (320, 256)


def test_plans_alone_make_a_report_too() -> None:
    kernel = Kernel("norm", [], [], "4", [], {}, 8, 192, 128, 256)
    report = bare_report("llvm", "cpu", [kernel], {"argmax": "why"}, ())
    assert [k.function for k in report.kernels] == ["norm"] and report.stitched.bytes == 320
    assert report.stock is None and json.dumps(report.to_dict())
