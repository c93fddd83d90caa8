# SPDX-License-Identifier: Apache-2.0
"""The comparison of a decoder's step on a CPU is right, and says what it needs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import bench_decode_cpu

SMALL = ["--layers", "1", "--hidden", "256", "--inner", "512", "--cache", "64"]


def test_a_small_step_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_decode_cpu.main(["--types", "4bit", "--contenders", "stitched", *SMALL]) == 0
    header, stitched, read = capsys.readouterr().out.splitlines()[-3:]
    assert header.split() == ["weights", "contender", "ms", "GB/s", "error"]
    assert stitched.split()[:2] == ["4bit", "stitched"] and float(stitched.split()[-1]) < 1e-4
    assert read.split()[1] == "read"


def test_packages_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_decode_cpu, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        bench_decode_cpu.main(["--contenders", "llama.cpp"])
    assert "pip install llama-cpp-python gguf" in capsys.readouterr().err
