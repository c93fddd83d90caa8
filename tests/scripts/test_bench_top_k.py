# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the largest elements compares equal results."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import bench_top_k  # noqa: E402


def test_all_contenders_find_the_same_elements(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_top_k.main(["--shapes", "3x70x9", "--blocks", "1", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines[1:]] == list(bench_top_k.ORDERS)
