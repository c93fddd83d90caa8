# SPDX-License-Identifier: Apache-2.0
"""explain: text, pages, timelines and answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm

from tests.cli.helpers import run


def test_explain_prints_text_or_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, text, stderr = run(capfd, "explain", model, "--shape", "x=8,16", "--quiet")
    assert code == 0 and text.strip()
    assert "planning" not in stderr
    code, stdout, _ = run(capfd, "explain", model, "--shape", "x=8,16", "--json")
    assert code == 0
    assert isinstance(json.loads(stdout), dict)


def test_explain_writes_a_page_and_a_timeline(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page, timeline = tmp_path / "new" / "report.html", tmp_path / "trace.json"
    code, stdout, stderr = run(
        capfd, "explain", model, "--shape", "x=8,16", "--html", page, "--trace", timeline
    )
    assert code == 0 and "3 kernels a call" in stdout and f"writing {page}" in stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<h1>head</h1>" in text and '"source":"p"' in text
    events = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    ours = [e for e in events if e["pid"] == 1]
    assert len(ours) == 3 < len(events) and sorted(p.name for p in tmp_path.iterdir()) == [
        "new",
        "trace.json",
    ]


def test_explain_answers_for_a_pair(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", model, "--shape", "x=8,16", "-q", "--why")
    code, stdout, _ = run(capfd, *arguments, "low", "p")
    assert code == 0 and stdout.startswith("low and p are in one kernel: stitch_")
    code, stdout, _ = run(capfd, *arguments, "h", "p")
    assert code == 0 and "compute-intensive" in stdout and "What to do: Nothing" in stdout
    code, _, stderr = run(capfd, *arguments, "h", "pp")
    assert code == 2 and stderr.endswith(
        "tvm-stitch: error: --why: nothing is called 'pp'; did you mean p?\n"
    )


def test_explain_tells_everything_on_request(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "explain", model, "--shape", "x=8,16", "-q", "--verbose")
    assert code == 0 and "least possible traffic" in stdout and "Boundaries:" in stdout


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_outputs_that_cannot_be_written(
    option: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    for path, message in (
        (tmp_path, "is a folder; give the path of a file"),
        (tmp_path / "file" / "page", "cannot write"),
        ("", "is a folder"),
    ):
        code, stdout, stderr = run(capfd, "explain", model, "--shape", "x=8,16", "-q", option, path)
        assert code == 2 and stdout == ""
        (line,) = [line for line in stderr.splitlines() if line.startswith("tvm-stitch")]
        assert line.startswith("tvm-stitch: error: ") and message in line
    assert (tmp_path / "file").read_text() == "kept" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_two_outputs_in_one_file(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, stderr = run(capfd, "explain", model, "--html", tmp_path / "a", "--trace", tmp_path / "a")
    assert code == 2 and "--html and --trace name one file" in stderr and list(tmp_path.iterdir()) == []


def test_explain_measures(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", model, "--shape", "x=8,16", "--measure", "--repeats", 2)
    page, timeline = tmp_path / "report.html", tmp_path / "trace.json"
    code, stdout, stderr = run(capfd, *arguments, "--html", page, "--trace", timeline)
    assert code == 0 and "measured on this CPU, 2 calls" in stdout and "TVM's own kernels, by time" in stdout
    assert (
        "timing every kernel, 2 calls" in stderr and '"measured_on":"this CPU, 2 calls"' in page.read_text()
    )
    events = [e for e in json.loads(timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {1, 2} and all(
        "measured on this CPU" in e["args"]["time"] for e in events
    )
    code, stdout, _ = run(capfd, *arguments, "-q", "--json")
    data = json.loads(stdout)["measured"]
    assert code == 0 and len(data["stitched"]["kernels"]) == 3 and len(data["stock"]["kernels"]) > 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "a shape must be given for it: --shape x=N,"),
        (("--shape", "x=8,16", "--target", "cuda"), 1, "no cuda device here; compile and explain need none"),
        (("--shape", "x=8,16", "--repeats", "0"), 2, "--repeats must be at least 1"),
        (("--shape", "x=8,16", "--why", "h", "p"), 2, "give one of them"),
    ],
)
def test_what_cannot_be_measured(
    arguments: tuple[str, ...], code: int, message: str, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in arguments and tvm.cuda(0).exist:
        pytest.skip("needs a machine without a CUDA device")
    found, stdout, stderr = run(capfd, "explain", model, "--measure", "-q", *arguments)
    assert found == code and stdout == ""
    assert message in [line for line in stderr.splitlines() if line.startswith("tvm-stitch")][0]


def test_explain_prints_the_passes_without_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "explain", "--passes", "--target", "cuda -arch=sm_90", "-q")
    assert code == 0 and stdout.startswith("import-repair: ") and "- UnequalSplits [CPUs]: " in stdout
    code, _, stderr = run(capfd, "explain", "-q")
    assert code == 2 and "give a MODEL to explain, or --passes" in stderr


def test_explain_prints_the_passes_of_no_model(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, stderr = run(capfd, "explain", model, "--passes", "-q")
    assert code == 2 and "--passes is about no model" in stderr


def test_explain_dumps_phases(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", model, "--shape", "x=8,16", "-q", "--dump-to", tmp_path / "dumped", "--dump")
    code, _, _ = run(capfd, *arguments, "layouts")
    assert code == 0 and [path.name for path in (tmp_path / "dumped").iterdir()] == ["06-layouts.py"]
    code, _, stderr = run(capfd, *arguments, "layout")
    assert code == 2 and "did you mean layouts?" in stderr


def test_reports_are_compared(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", model, "--shape", "x=8,16", "--target", "cuda -arch=sm_90", "-q")
    saved, page = tmp_path / "a.json", tmp_path / "d.html"
    assert run(capfd, *arguments, "--save", saved)[0] == 0
    code, stdout, _ = run(capfd, *arguments, "--against", saved)
    assert code == 0 and stdout.startswith("a.json (cuda sm_90) and this report") and "\n  none\n" in stdout
    code, stdout, _ = run(capfd, *arguments, "--against", "stock", "--html", page, "--json")
    data = json.loads(stdout)
    assert code == 0 and data["before"] == "stock TVM" and data["changes"]
    assert "Best opportunities" in page.read_text(encoding="utf-8")
    for words, said in (
        (["--against", tmp_path / "none"], "none cannot be read: No such file"),
        (["--against", model], "is not a saved report"),
        (["--against", ""], "--against is empty"),
        (["--against", saved, "--why", "a", "b"], "give one of them"),
        (["--against", saved, "--save", saved], "is read by this command"),
    ):
        code, _, stderr = run(capfd, *arguments, *words)
        assert code == 2 and said in stderr, stderr
