# SPDX-License-Identifier: Apache-2.0
"""Cores count once, however many threads they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvm_stitch.cores import physical_cores, use_all_cores


def test_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for processor in range(4):
        (tmp_path / f"cpu{processor}").write_text(f"{processor % 2},{processor % 2 + 2}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 7}, raising=False)
    assert physical_cores(str(tmp_path / "cpu{}")) == 3  # two of two threads, and one that nothing is said of


def test_a_number_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    use_all_cores()
    assert os.environ["TVM_NUM_THREADS"] == "7"
