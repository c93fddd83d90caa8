# SPDX-License-Identifier: Apache-2.0
"""The stress run itself: it sees results that change, wrong ones, hangs and crashes, and what a graph captures."""

from __future__ import annotations

import argparse
import time

import numpy as np
import pytest
import tvm

import cuda_emulator
from cuda_emulator import default_target
from stitch_testing.planted import planted

pytest.importorskip("torch")

import barrier_stress  # noqa: E402

Task = barrier_stress.Task


def hang(task: object) -> object:
    time.sleep(120)
    return task


def crash(task: object) -> object:
    import os

    os.abort()


def test_the_chained_reductions_are_right_in_every_order() -> None:
    outcome = barrier_stress.stress(Task("chained", target="emulator", launches=4))
    assert outcome.problems == () and (outcome.calls, outcome.wrong, outcome.kernels) == (4, 0, 4)


def test_a_step_of_a_decoder_is_right() -> None:
    outcome = barrier_stress.stress(Task("decoder", target="emulator", launches=1))
    assert outcome.problems == () and outcome.calls == 1 and outcome.wrong == 0


def test_a_missing_barrier_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cuda_emulator.lower
    monkeypatch.setattr(cuda_emulator, "lower", lambda *args: planted(real(*args), "grid-barrier", 1))
    problems = barrier_stress.stress(Task("chained", target="emulator", launches=2)).problems
    assert any("seed 1: race" in problem for problem in problems)


def test_a_workload_through_the_code_of_the_device() -> None:
    outcome = barrier_stress.stress(Task("softmax", target="llvm", launches=30, batch=8))
    assert outcome.problems == () and outcome.calls == 30


def test_results_that_change_are_counted() -> None:
    class Flaky:
        device = tvm.cpu()
        calls = 0

        def __call__(self) -> list[object]:
            self.calls += 1
            value = np.full(5, np.nan if self.calls in (3, 9) else 1.0, np.float32)
            return [tvm.runtime.tensor(value), tvm.runtime.tensor(np.empty((0, 2), np.float32))]

    first = [np.ones(5, np.float32), np.empty((0, 2), np.float32)]
    assert barrier_stress.differing(Flaky(), first, 10, 4) == 2
    assert barrier_stress.differing(Flaky(), [-first[0], first[1]], 10, 4) == 10


def test_a_wrong_first_result_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_stress, "evaluate", lambda mod, inputs: [np.zeros((7, 33))])
    (problem,) = barrier_stress.stress(Task("softmax", target="llvm", launches=2)).problems
    assert "wrong" in problem


@pytest.mark.parametrize(
    "function, seconds, word", [(hang, 3.0, "no answer in"), (crash, 100.0, "died with exit code -6")]
)
def test_a_hang_or_crash_is_reported_and_the_next_task_runs(
    function: object, seconds: float, word: str
) -> None:
    both = [Task("chained"), Task("chained", mode="busy")]
    first, second = barrier_stress.run_all(both, seconds, function)
    assert word in first.problems[0] and word in second.problems[0]
    assert "FAILED" in barrier_stress.table([first])


def test_exit_code_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--target llvm --launches 5 --cases softmax".split()
    assert barrier_stress.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 2 and lines[1].split()[:3] == ["softmax", "alone", "5"] and lines[1].endswith("right")
    )
    assert barrier_stress.main([*arguments[:-1], "nothing"]) == 1
    assert "no case 'nothing'" in capsys.readouterr().out


def test_the_graph_mode_captures_barrier_kernels() -> None:
    what = barrier_stress.subject(Task("chained", target="emulator"))
    for wanted in (False, True):
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": wanted}):
            executable = tvm.compile(what.mod, default_target(), relax_pipeline="default")
        assert barrier_stress.captures(executable) == wanted


def test_tasks_and_workloads() -> None:
    args = argparse.Namespace(
        cases=["chained", "softmax"],
        scale="test",
        modes=["alone", "busy"],
        cuda_graph=False,
        emulate=False,
        target="cuda",
        launches=7,
        batch=2,
        inputs=3,
    )
    found = barrier_stress.tasks(args)
    assert [(t.name, t.mode) for t in found] == [
        ("chained", "alone"),
        ("chained", "busy"),
        ("softmax", "alone"),
        ("softmax", "busy"),
    ]
    args.cuda_graph = True
    assert [t.mode for t in barrier_stress.tasks(args)] == ["graph", "graph"]
    names = barrier_stress.workloads("gpu")
    assert {"softmax", "layer_norm_backward", "layer_norm_backward.2"} <= set(names)
