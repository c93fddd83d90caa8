# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: contenders agree before they are timed, failures are kept, ratios are right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tvm_stitch.testing.workloads import cases
from tvm_stitch.testing.workloads.case import Case

pytest.importorskip("torch")

import _contenders as contenders  # noqa: E402
import _measure as measure  # noqa: E402
import bench_suite  # noqa: E402


def test_contenders_are_checked_timed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "numbers.json"
    arguments = ["--scale", "test", "--cases", "softmax,swiglu", "--contenders", "stitched,stock,eager"]
    assert bench_suite.main([*arguments, "--json", str(target)]) == 0
    rows = json.loads(target.read_text())
    assert [row["case"] for row in rows] == ["softmax", "swiglu"]
    for row in rows:
        assert set(row["timings"]) == {"stitched", "stock", "eager"} and row["failed"] == {}
        assert all(0 < timing["least"] <= timing["seconds"] for timing in row["timings"].values())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("target: ")
    assert lines[1].split() == ["case", "MB", "us", "stock/stitched", "eager/stitched"]
    assert lines[-2].startswith("geometric mean") and lines[-1].startswith("least")


def test_a_contender_that_fails_or_errs_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case, sets: list, target: str) -> None:
        raise RuntimeError("no compiler\nkernel.cu(3): error: nothing works")

    def wrong(case: Case, sets: list, target: str) -> object:
        return contenders.Prepared(lambda x: x, sets, lambda array: array)

    monkeypatch.setitem(contenders.MAKERS, "broken", broken)
    monkeypatch.setitem(contenders.MAKERS, "wrong", wrong)
    row = bench_suite.bench(cases.softmax(3, 5), "llvm", ["stock", "broken", "wrong"])
    assert set(row["timings"]) == {"stock"}
    assert "nothing works" in row["failed"]["broken"] and row["failed"]["wrong"].startswith("wrong: output 0")


def test_ratios_and_means() -> None:
    def timing(seconds: float) -> object:
        return measure.Timing(seconds, seconds, seconds, kernels=1)

    def row(name: str, mine: float, stock: float, copy: float) -> dict:
        timings = {"stitched": timing(mine), "stock": timing(stock), "copy": timing(copy)}
        return {"case": name, "bytes_least": 8_000_000, "timings": timings, "failed": {}}

    rows = [row("a", 2e-6, 4e-6, 1.9e-6), row("b", 1e-6, 8e-6, 0.5e-6)]
    lines = [line.split() for line in bench_suite.table(rows, "cuda", ["stitched", "stock"]).splitlines()]
    assert lines[1] == ["a", "8.0", "1", "2.0", "4.00", "95.0", "2.00"]
    assert lines[3][-1] == "4.00" and lines[4][-1] == "2.00"


def test_prepared_rotates_its_inputs_and_answers_for_the_first() -> None:
    seen: list[int] = []
    prepared = contenders.Prepared(lambda x: seen.append(x) or np.array([x]), [[1], [2]], lambda array: array)
    for _ in range(3):
        prepared()
    assert seen == [1, 2, 1] and prepared.outputs()[0][0] == 1


def test_small_workloads_get_enough_input_sets_to_leave_a_gpu_cache() -> None:
    case = cases.softmax(1024, 1024)
    assert len(contenders.input_sets(case, "llvm")) == 1
    assert len(contenders.input_sets(case, "cuda")) * case.bytes_least() > 100e6


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--cases", "nothing"], ["--contenders", "nobody"]):
        with pytest.raises(SystemExit):
            bench_suite.main(arguments)
        assert "choose from" in capsys.readouterr().err
