# SPDX-License-Identifier: Apache-2.0
"""Repeated layers are found, whole and once."""

from __future__ import annotations

import time

import pytest

from tvm_stitch.report.data import Repeat
from tvm_stitch.report.repeats import find_repeats


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("", []),
        ("abcdef", []),
        ("e" + "qqqano" * 12 + "z", [Repeat(1, 6, 12)]),
        ("aa", []),  # hides one kernel: not worth a frame
        ("aaaa", [Repeat(0, 1, 4)]),
        ("xababab" + "cdcdcd", [Repeat(1, 2, 3), Repeat(7, 2, 3)]),
        ("abcabcab", [Repeat(0, 3, 2)]),  # the rest is no whole round
    ],
)
def test_repeats(row: str, found: list[Repeat]) -> None:
    assert list(find_repeats(row)) == found


def test_a_thousand_kernels_take_no_time() -> None:
    start = time.perf_counter()
    assert find_repeats(list(range(500)) + [1, 2, 3] * 200) == (Repeat(500, 3, 200),)
    assert time.perf_counter() - start < 5
