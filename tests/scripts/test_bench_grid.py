# SPDX-License-Identifier: Apache-2.0
"""The grid benchmark: contenders are checked, each failure stays in its cell, ratios and kernels are right."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scripts.misbehaving import misbehave
from tvm_stitch.testing.workloads.grid_case import Domain, GridCase
from tvm_stitch.testing.workloads.grid_cases import column_sum, grid_cases

torch = pytest.importorskip("torch")

import _flushed as flushed  # noqa: E402
import _grid_contenders as contenders  # noqa: E402
import bench_grid  # noqa: E402

LABELS = [case.label for case in grid_cases("test")]


def measured(seconds: float, kernels: int | None, copies: int = 0) -> Any:
    return contenders.Answer(measured=flushed.Measured(seconds, seconds, seconds, kernels, copies))


def test_a_table_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "numbers.json"
    chosen = f"column_sum,{LABELS[0]}"
    arguments = ["--target", "llvm", "--scale", "test", "--cases", chosen, "--contenders", "stock,eager"]
    assert bench_grid.main([*arguments, "--json", str(target)]) == 0
    rows = json.loads(target.read_text())
    assert [row["case"] for row in rows] == ["layer_norm_backward", "column_sum"]
    for row in rows:
        assert set(row["answers"]) == {"stock", "eager", "copy"}
        assert all(answer["problem"] is None for answer in row["answers"].values())
        assert all(answer["measured"]["seconds"] > 0 for answer in row["answers"].values())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:6] == ["case", "MB", "copy", "us", "stock", "eager"]
    assert lines[1].startswith(LABELS[0]) and len(lines) == 3


class Stub:
    """A worker that answers at once, by the contender's name."""

    def __init__(self) -> None:
        self.stopped = False
        stubs.append(self)

    def ask(self, job: Any, timeout: float) -> Any:
        asked.append((job.step, job.contender, job.case, timeout))
        reasons = {
            "inductor": "the process died with exit code 7",
            "xla": "no answer in 8 s",
            "eager": "wrong: x",
        }
        if job.contender in reasons:
            return contenders.Answer(reasons[job.contender])
        return measured(2e-6, 1) if job.step == "measure" else contenders.Answer()

    def stop(self) -> None:
        self.stopped = True


asked: list[tuple[str, str, int, float]] = []
stubs: list[Stub] = []


def test_a_crash_a_hang_and_a_wrong_result_leave_the_rest_alone() -> None:
    names = ["stitched", "inductor", "xla", "eager"]
    asked.clear(), stubs.clear()
    rows = bench_grid.run([0, 5], names, "test", "llvm", 8.0, time.monotonic() + 600, Stub)
    assert len(rows) == 2
    for row in rows:
        cells = [bench_grid._cell(row.answers[name]) for name in names]
        assert cells == ["1: 2.0", "CRASH", "too slow", "WRONG"]
    # All is prepared before anything is timed, and only what could be prepared is timed.
    assert [step for step, *_ in asked] == ["prepare"] * 8 + ["measure"] * 2
    assert asked[-2:] == [("measure", "stitched", 0, 8.0), ("measure", "stitched", 5, 8.0)]
    assert len(stubs) == 4 and all(stub.stopped for stub in stubs)


def test_a_process_that_dies_is_started_again() -> None:
    worker = bench_grid.Worker(misbehave)
    try:
        job = contenders.Job("prepare", "inductor", 0, "test", "llvm")
        assert "exit code 7" in worker.ask(job, 240).problem
        assert worker.ask(contenders.Job("measure", "stock", 0, "test", "llvm"), 240).measured.kernels == 1
    finally:
        worker.stop()


def test_nothing_starts_after_the_budget_is_spent() -> None:
    (row,) = bench_grid.run([0], ["stitched"], "test", "llvm", 60.0, time.monotonic() - 1, Stub)
    assert row.answers["stitched"].problem == "no time left"
    assert bench_grid._cell(row.answers["stitched"]) == "no time"


def test_ratios_and_kernels() -> None:
    row = bench_grid.Row(
        column_sum(1000, 250),
        {
            "stitched": measured(2e-6, 1),
            "stock": measured(9e-6, 2),
            "inductor": measured(5e-6, 2, copies=1),
            "xla": contenders.Answer("RuntimeError: no jax"),
            "copy": measured(1.5e-6, 0, copies=1),
        },
    )
    names = ["stitched", "stock", "inductor", "xla", "copy"]
    head, line = bench_grid.table([row], names).splitlines()
    assert line.split() == (
        [
            "column_sum<1000,250>",
            "1.0",
            "1.5",
            "1:",
            "2.0",
            "2:",
            "9.0",
            "2+1:",
            "5.0",
            "FAILED",
            "2.50",
            "75",
        ]
    )
    assert row.best_peer() == 5e-6
    assert bench_grid._cell(measured(1e-6, None)) == "~1.0" and bench_grid._cell(None) == "-"


def test_drawn_inputs_are_the_same_in_every_process_and_from_their_domains() -> None:
    for case in grid_cases("test"):
        first, second = contenders.draw(case, "cpu"), contenders.draw(case, "cpu")
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert [(tuple(x.shape), str(x.dtype)) for x in first] == [
            (spec.shape, f"torch.{spec.dtype}") for spec in case.arguments
        ]
        for x, domain in zip(first, case.domains, strict=True):
            if domain.kind == "normal" and x.numel() > 500:
                assert abs(float(x.mean()) - domain.low) < 0.3
            if domain.kind != "normal":
                assert float(x.min()) >= domain.low and float(x.max()) < domain.high


def test_expected_outputs_are_the_float64_ones() -> None:
    case = column_sum(300, 7)
    (x,) = contenders.draw(case, "cpu")
    (exact,) = contenders.expected(case, [x])
    assert exact.dtype == torch.float64
    np.testing.assert_allclose(exact.numpy(), x.numpy().astype(np.float64).sum(0), rtol=1e-14)


def test_problems_are_found_and_measured_against_the_output() -> None:
    exact = torch.linspace(-200.0, 200.0, 101, dtype=torch.float64)
    good = (exact + 1e-3).float()
    assert contenders.problems([good], [exact]) == []
    bad = good.clone()
    bad[3] += 1.0
    assert "1 of 101 wrong" in contenders.problems([bad], [exact])[0]
    bad[4] = float("nan")
    assert "2 of 101 wrong" in contenders.problems([bad], [exact])[0]
    assert "shape" in contenders.problems([good[:5]], [exact])[0]
    assert contenders.problems([], [exact]) == ["0 outputs, expected 1"]
    zero_mean = torch.zeros(4, dtype=torch.float64)
    assert contenders.problems([torch.full((4,), 0.01)], [zero_mean]) != []


def test_a_wrong_contender_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(case: GridCase, target: str) -> Any:
        return lambda x: x.sum(dim=0) * 1.01

    monkeypatch.setattr(contenders, "MAKERS", {**contenders.MAKERS, "stock": wrong})
    place = [case.name for case in grid_cases("test")].index("column_sum")
    for step in ("prepare", "measure"):
        answer = contenders.work(contenders.Job(step, "stock", place, "test", "llvm"))
        assert answer.problem.startswith("wrong: output 0") and answer.measured is None


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--cases", "nothing"], ["--contenders", "nobody"]):
        with pytest.raises(SystemExit):
            bench_grid.main(arguments)
        assert "choose from" in capsys.readouterr().err


def test_labels_keep_their_commas() -> None:
    assert bench_grid._split_labels("a,b<1,2>,c<3>") == ["a", "b<1,2>", "c<3>"]
    assert Domain().kind == "normal"
