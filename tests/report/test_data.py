# SPDX-License-Identifier: Apache-2.0
"""The report's data: frozen, JSON-able, and sums of sizes that may be symbolic or unknown."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.report.samples import sample
from tvm_stitch.report.bare import bare_report
from tvm_stitch.report.data import Size, add_sizes
from tvm_stitch.report.kernel import Kernel
from tvm_stitch.report.words import bytes_in_words


def test_reports_are_json() -> None:
    data = json.loads(json.dumps(sample().to_dict()))
    assert data["kernels"][2]["function"] == "norm" and data["edges"][4]["reasons"][0]["advice"]
    assert data["stock"]["kernels"] == 9


def test_reports_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample().device = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ((), 0),
        ((1, 2), 3),
        ((1, None), None),
        ((0, "n * 4", 8), "n * 4 + 8"),
        ((512, "n * 4 + 8", "n", "n * 2 + m * 3"), "n * 7 + m * 3 + 520"),
        (
            ("(n + 3) // 4 * 16 + 5", "max(n + 1, 2) * 4", "(n + 3) // 4 * 16"),
            "((n + 3) // 4 * 16) * 2 + max(n + 1, 2) * 4 + 5",
        ),
    ],
)
def test_sums_of_sizes(sizes: tuple[Size, ...], total: Size) -> None:
    assert add_sizes(*sizes) == total


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (98_765_432, "98.8 MB"),
        ("n * 4", "n * 4 B"),
        (None, "?"),
    ],
)
def test_sizes_in_words(size: Size, words: str) -> None:
    assert bytes_in_words(size) == words


def test_what_a_kernel_moves() -> None:
    first, product = sample().kernels[:2]
    assert (first.bytes_moved, product.bytes_moved) == (320, 256)


def test_plans_alone_make_a_report_too() -> None:
    kernel = Kernel("norm", [], [], "4", [], {}, 8, 192, 128, 256)
    report = bare_report("llvm", "cpu", [kernel], {"argmax": "why"}, ())
    assert [k.function for k in report.kernels] == ["norm"] and report.stitched.bytes == 320
    assert report.stock is None and json.dumps(report.to_dict())
