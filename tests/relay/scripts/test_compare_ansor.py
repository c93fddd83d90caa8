# SPDX-License-Identifier: Apache-2.0
"""The comparison with Ansor: a whole run on a tiny subgraph, resumed from its log, and what it counts and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import compare_ansor
import numpy as np
import pytest
import tvm
from comparison import ansor, native
from comparison.relay_program import RelayProgram
from comparison.relay_workloads import workload
from comparison.workload_sizes import Sizes
from tvm import relay

TINY = ["--model", "add_layernorm_softmax", "--rows", "8", "--hidden", "32", "--blocks", "2"]
QUICK = ["--cost-model", "random", "--population", "16"]


def test_a_run_is_complete_and_goes_on_from_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log.json"

    def run(trials: int) -> dict:
        out = tmp_path / f"out{trials}"
        arguments = [*TINY, *QUICK, "--trials", str(trials), "--log", str(log), "--out", str(out)]
        assert compare_ansor.main(arguments) == 0
        assert "## Conditions" in (out / "table.md").read_text()
        assert (out / "plot.svg").read_text().startswith("<svg")
        return json.loads((out / "results.json").read_text())

    first = run(3)
    records = {record["name"]: record for record in first["records"]}
    assert list(records) == ["stock", "tuned", "stitched", "stitched_tuned", "stitched_templates"]
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
    assert "denied layout rewriting" in said and "3 trials asked for" in said and "random cost model" in said
    assert {"command", "date", "processor", "tvm", "xgboost"} <= set(first["facts"])

    lines = log.read_text().splitlines()
    assert len(lines) == 3
    again = {record["name"]: record for record in run(4)["records"]}
    assert log.read_text().splitlines()[:3] == lines and again["tuned"]["trials"] == 4
    assert again["tuned"]["tuning_seconds"] > records["tuned"]["tuning_seconds"]


def test_tuning_can_be_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ["--model", "encoder", "--sequence", "4", "--hidden", "16", "--heads", "2", "--ffn", "32"]
    log = tmp_path / "log.json"
    arguments = [*model, *QUICK, "--out", str(tmp_path), "--log", str(log), "--tune-only"]
    tuned: dict[str, list[str]] = {}

    def tune(tasks: ansor.Tasks, target: object, log: Path, trials: int, *_rest: object) -> None:
        tuned[str(trials)] = [task.workload_key for task in tasks.tasks]

    monkeypatch.setattr(ansor, "tune", tune)
    assert compare_ansor.main([*arguments, "--trials", "20", "--variants", "stock,tuned"]) == 0
    assert compare_ansor.main([*arguments, "--stitched-trials", "9", "--variants", "stitched_tuned"]) == 0
    assert list(tuned) == ["20", "9"] and tuned["9"] and not set(tuned["20"]) & set(tuned["9"])
    assert list(tmp_path.iterdir()) == []


def test_programs_are_counted_and_timed_by_kind() -> None:
    target = native.target_of("llvm")
    work = workload("encoder", Sizes(sequence=4, hidden=16, heads=2, ffn=32))
    with tvm.transform.PassContext(opt_level=3):
        program = RelayProgram(relay.build(work.mod, target, params=work.params), target, work.inputs)
    assert program.kernels.compute_intensive == 8 and program.kernels.memory_intensive > 5
    (result,), (expected,) = program.outputs(), work.reference()
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert 0 < program.sample_memory() and 0 < program.sample()


def test_templates_are_a_variant_of_their_own(tmp_path: Path) -> None:
    """They alone have no kernel of TVM's, and none for the activation of the first product behind the attention."""
    model = [
        "--model",
        "encoder",
        "--sequence",
        "4",
        "--hidden",
        "16",
        "--heads",
        "2",
        "--ffn",
        "32",
        "--blocks",
        "2",
    ]
    arguments = [*model, "--out", str(tmp_path), "--variants", "stitched,stitched_templates"]
    assert compare_ansor.main(arguments) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    records = {record["name"]: record for record in results["records"]}
    assert records["stitched_templates"]["error"] < 1e-5
    counts = [records[name]["kernels"] for name in ("stitched", "stitched_templates")]
    assert [c["compute_intensive"] for c in counts] == [8, 8]
    assert counts[1]["memory_intensive"] == counts[0]["memory_intensive"] - 1
    assert counts[1]["bytes_moved"] < counts[0]["bytes_moved"]
    assert "templates of tvm_stitch" in " ".join(results["statements"])


def test_tasks_of_the_stitched_model_are_its_contractions() -> None:
    from tvm_stitch import relay as stitch

    target = native.target_of("llvm")
    work = workload("encoder", Sizes(sequence=4, hidden=16, heads=2, ffn=32))
    original = ansor.relay_integration.call_all_topi_funcs
    every = ansor.extract(work.mod, work.params, target)
    ours = ansor.extract(work.mod, work.params, target, stitch.enable)
    assert ansor.relay_integration.call_all_topi_funcs is original
    # Ansor tunes softmax, mean and variance too. With stitching nothing but the eight contractions is left.
    assert len(every.compute_intensive().tasks) < len(every.tasks)
    assert len(ours.compute_intensive().tasks) == len(ours.tasks) and sum(ours.weights) == 8


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
            compare_ansor.main([*out, *arguments])
        assert words in capsys.readouterr().err


def test_a_log_of_another_target_is_refused(tmp_path: Path) -> None:
    target = tvm.target.Target("llvm -mcpu=haswell")
    x = relay.var("x", shape=(8, 16))
    tasks = ansor.extract(tvm.IRModule.from_expr(relay.Function([x], relay.nn.softmax(x))), {}, target)
    log = tmp_path / "log.json"
    ansor.tune(tasks, target, log, 1, 0, search=ansor.Search("random", 16))
    assert ansor.history(log, target).of(tasks) == 1
    with pytest.raises(ValueError, match="give another --log"):
        ansor.history(log, tvm.target.Target("llvm -mcpu=skylake"))
    with pytest.raises(ValueError, match="too few"):
        ansor.tune(tasks, target, log, 0, 0)
