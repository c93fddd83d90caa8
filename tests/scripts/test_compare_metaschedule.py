# SPDX-License-Identifier: Apache-2.0
"""The comparison with MetaSchedule: a whole run on a tiny subgraph, resumed from its database, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import compare_metaschedule
import numpy as np
import pytest
import tvm
from comparison import metaschedule, native
from comparison.relax_program import RelaxProgram
from comparison.relax_workloads import workload
from comparison.workload_sizes import Sizes
from tvm import relax

import tvm_stitch.relax
from stitch_testing.random.graphs import emulated_target

TINY = ["--model", "add_layernorm_softmax", "--rows", "8", "--hidden", "32", "--blocks", "2"]
QUICK = ["--cost-model", "random", "--strategy", "replay-trace"]
SMALL = Sizes(sequence=4, hidden=16, heads=2, ffn=32)


@pytest.mark.usefixtures("children_without_torch")
def test_a_run_is_complete_and_goes_on_from_its_database(tmp_path: Path) -> None:
    pytest.importorskip("psutil", reason="MetaSchedule needs it")
    database = tmp_path / "records"

    def run(trials: int, *more: str) -> dict:
        out = tmp_path / f"out{trials}"
        arguments = [*TINY, *QUICK, "--trials", str(trials), "--log", str(database), "--out", str(out), *more]
        assert compare_metaschedule.main(arguments) == 0
        assert "## Conditions" in (out / "table.md").read_text()
        assert (out / "plot.svg").read_text().startswith("<svg")
        return json.loads((out / "results.json").read_text())

    first = run(3)
    records = {record["name"]: record for record in first["records"]}
    assert list(records) == ["stock", "tuned", "stitched", "stitched_tuned"]
    for record in records.values():
        assert record["problem"] is None and record["error"] < 1e-5 and record["compile_seconds"] > 0
        for times in (record["seconds"], record["memory_seconds"]):
            assert 0 < times["least"] <= times["median"] <= times["most"]
    assert (
        records["stock"]["kernels"]["memory_intensive"] == records["tuned"]["kernels"]["memory_intensive"] > 1
    )
    assert records["stitched"]["kernels"]["memory_intensive"] == 1
    # x, y, gamma, beta and the result, each once: what any implementation must move.
    assert records["stitched"]["kernels"]["bytes_moved"] == 4 * (3 * 8 * 32 + 2 * 32)
    assert records["tuned"]["trials"] == 3 and records["tuned"]["tuning_seconds"] > 0
    said = " ".join(first["statements"])
    assert "3 trials asked for" in said and "was denied it" in said and "replay-trace" in said
    assert "trials of these 3 tasks failed" not in said
    assert {"command", "date", "processor", "tvm", "xgboost"} <= set(first["facts"])

    path = database / "database_tuning_record.json"
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    again = {record["name"]: record for record in run(4, "--variants", "tuned")["records"]}
    assert path.read_text().splitlines()[:3] == lines and again["tuned"]["trials"] == 4
    assert again["tuned"]["tuning_seconds"] > records["tuned"]["tuning_seconds"]


def test_programs_are_counted_and_timed_by_kind() -> None:
    target = native.target_of("llvm")
    work = workload("encoder", SMALL)
    (expected,) = work.reference()
    # Stitched, attention is one kernel: two products and a softmax.
    for products, pipeline in (
        (8, relax.get_default_pipeline(target)),
        (7, tvm_stitch.relax.pipeline(target)),
    ):
        program = RelaxProgram(work.mod, target, pipeline, work.inputs)
        assert program.kernels.compute_intensive == products and program.kernels.memory_intensive > 1
        np.testing.assert_allclose(program.outputs()[0], expected, atol=1e-5)
        assert 0 < program.sample_memory() and 0 < program.sample()


def test_tasks_of_the_stitched_model_are_its_contractions() -> None:
    target = native.target_of("llvm")
    mod = workload("encoder", SMALL).mod
    every = metaschedule.extract(mod, target, stitched=False)
    ours = metaschedule.extract(mod, target, stitched=True)
    assert len(every.compute_intensive().tasks) < len(every.tasks)
    assert sum(int(task.weight) for task in ours.compute_intensive().tasks) == 8
    # Stitch ops have their schedules: they are nothing to tune.
    assert not [task.task_name for task in ours.tasks if str(task.task_name).startswith("stitch_")]


def test_on_a_gpu_both_builds_have_the_same_contractions(tmp_path: Path) -> None:
    """By the database's own judgement, also when it is opened again: what was tuned for one serves the other."""
    target, mod = emulated_target(), workload("encoder", replace(SMALL, sequence=8)).mod
    keys = []
    for stitched in (False, True):
        records = metaschedule.Records(tmp_path)
        tasks = metaschedule.extract(mod, target, stitched).compute_intensive().tasks
        keys.append({records.key(task) for task in tasks})
        assert len(keys[-1]) == len(tasks)
    assert keys[0] == keys[1] and len(keys[0]) == 6


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psutil", reason="MetaSchedule needs it")
    out = ["--out", str(tmp_path)]
    bad = [
        (["--model", "nothing"], "no workload"),
        (["--variants", "best"], "choose from stock"),
        (["--hidden", "10", "--heads", "3"], "multiple of heads"),
    ]
    if not tvm.cuda(0).exist:
        bad.append((["--target", "cuda"], "no CUDA device"))
    for arguments, words in bad:
        with pytest.raises(SystemExit):
            compare_metaschedule.main([*out, *arguments])
        assert words in capsys.readouterr().err
