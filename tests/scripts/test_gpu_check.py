# SPDX-License-Identifier: Apache-2.0
"""The device check itself, run on the CPU: it poisons what it says, and sees wrong results and failures."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from tvm_stitch.testing.workloads import cases

pytest.importorskip("torch")

import gpu_check  # noqa: E402

ON_CPU = {"target": "llvm", "stock": True}


def test_outputs_are_written_into_poisoned_memory() -> None:
    case = cases.lstm_cell(64, 128)
    runner = gpu_check.Runner(case.build(), gpu_check.Task("case", "lstm_cell", "test", **ON_CPU))
    runner.run(case.inputs(np.random.default_rng(0)))
    assert runner.outputs == 2 and runner.outputs_poisoned == 2


def test_a_right_case_has_no_problems_and_counts_kernels() -> None:
    outcome = gpu_check.check(gpu_check.Task("case", "swiglu", "test", **ON_CPU))
    assert outcome.problems == () and outcome.kernels == "1/1" and outcome.poisoned == "2/2"


def test_wrong_results_and_failures_are_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    task = gpu_check.Task("case", "softmax", "test", **ON_CPU)
    monkeypatch.setattr(gpu_check, "evaluate", lambda mod, inputs: [np.zeros((7, 33))])
    (problem,) = gpu_check.check(task).problems
    assert "wrong" in problem
    (problem,) = gpu_check.check(gpu_check.Task("random", "no number", **ON_CPU)).problems
    assert problem.startswith("ValueError")


def test_results_that_change_between_equal_runs_are_a_problem() -> None:
    case = cases.softmax(2, 3)
    runner = gpu_check.Runner(case.build(), gpu_check.Task("case", "softmax", "test", **ON_CPU))
    results = iter([np.zeros(2), np.ones(2)])
    runner.run = lambda inputs: [next(results)]
    problems = runner.check(lambda: case.inputs(np.random.default_rng(0)), lambda outputs, inputs: [])
    assert problems == ["output 0 differs between equal runs"]


def test_exit_code_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--target llvm --stock --scales test --cases power_broadcast_add --random 1 --jobs 0".split()
    assert gpu_check.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "case power_broadcast_add test" in printed and "random graphs: 1 of 1 right" in printed
    assert printed.strip().endswith("2 of 2 right")


def test_tasks_follow_the_arguments() -> None:
    args = argparse.Namespace(
        target="cuda", stock=False, scales=["test", "cpu"], cases=None, random=3, start=10, inputs=5
    )
    found = gpu_check.tasks(args)
    assert len(found) == 2 * 12 + 1 + 3 and [task.name for task in found[-3:]] == ["10", "11", "12"]
    assert {task.inputs for task in found} == {5}
    args.cases = "softmax,swiglu"
    assert [task.kind for task in gpu_check.tasks(args)] == ["case"] * 4 + ["random"] * 3
