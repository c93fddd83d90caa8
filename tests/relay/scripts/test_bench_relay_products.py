# SPDX-License-Identifier: Apache-2.0
"""The timing of products in Relay: its cases are what their names say, and a line has both figures."""

from __future__ import annotations

import os
import re

import pytest


def test_a_line_for_each_case(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "2"))  # the script sets it
    import bench_relay_products as bench

    assert len({case.name for case in bench.cases()}) == len(bench.cases())
    assert bench.main(["--target", "llvm", "--rounds", "1", "--cases", "dense 13"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert "one thread" in head and re.fullmatch(r"dense 13x100x64 +[\d.]+ +[\d.]+ +\d.\de[+-]\d\d", line)
