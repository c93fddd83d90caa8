# SPDX-License-Identifier: Apache-2.0
"""The targets of make that the README and the guide show, and who executes each other command that they show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

ROOT = Path(__file__).resolve().parent.parent
SHOWN = [
    line
    for page in (ROOT / "README.md", ROOT / "docs/user-guide.md", *(ROOT / "docs/user-guide").glob("*.md"))
    for line in re.findall(r"^\$ (.*?)(?: +#.*)?$", page.read_text(encoding="utf-8"), re.M)
]
EXECUTED = {
    r"tvm-stitch ": "cli/test_shown_commands.py",
    r"make (run|venv)$": "test_make.py",
    r"source \.venv/bin/activate$": "test_readme.py",
    r"python scripts/report_opening\.py": "scripts/test_report_opening.py",
    r"python scripts/report_accessibility\.py": "scripts/test_report_accessibility.py",
    r"python scripts/bench_launcher\.py": "scripts/test_bench_launcher.py",
    r"python scripts/check_bench\.py": "scripts/test_check_bench.py",
    r"python scripts/bench_models\.py ": "scripts/test_bench_models.py",
    r"python scripts/bench_operators\.py": "scripts/test_bench_operators.py",
    r"python scripts/bench_compile\.py ": "scripts/test_bench_compile.py",
    r"(\w+=\d+ )*python examples/generate\.py ": "examples/test_generate.py",
}
"""Shown commands, by how they begin, and the test that executes them: scripts with smaller models than are shown."""
NOT_EXECUTED = (r"make test$", r"pip install ", r"npm install ")
"""The tests themselves, and downloads. ``test_packaging.py`` installs the wheel into a fresh environment."""


def test_every_shown_command_is_executed_by_a_test() -> None:
    assert len(SHOWN) > 15
    for line in SHOWN:
        tests = [test for start, test in EXECUTED.items() if re.match(start, line)]
        skipped = [start for start in NOT_EXECUTED if re.match(start, line)]
        assert len(tests) + len(skipped) == 1, line
        script = re.search(r"scripts/(\w+)\.py", line)
        for test in tests:
            text = (ROOT / "tests" / test).read_text(encoding="utf-8")
            assert script is None or script[1] in text, (line, test)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that make needs of a clone, with an environment that is up to date: this one."""
    for name in ("Makefile", "scripts", "requirements", "pyproject.toml", "python"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "pip").touch()
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    for done in (".packages", ".installed"):
        (tmp_path / ".venv" / done).touch()
    return tmp_path


def _make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", *words], cwd=clone, capture_output=True, text=True, check=False,
        timeout=300, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("make") is None, reason="no make found")
def test_make_run_shows_a_model(clone: Path) -> None:
    small = BertConfig(layers=1, hidden=32, heads=2, sequence=16, ffn=64, vocabulary=64)
    onnx.save(build_bert(small), str(clone / "small.onnx"))
    done = _make(clone, "run", "MODEL=small.onnx")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines() + done.stderr.splitlines()) <= 50
    assert "installing" not in done.stdout and (clone / "build" / "report.html").is_file()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make found")
def test_make_venv_leaves_what_is_up_to_date(clone: Path) -> None:
    done = _make(clone, "venv")
    assert (done.returncode, done.stderr) == (0, "") and "Nothing to be done" in done.stdout
    old = _make(clone, "venv", "PYTHON=/bin/false", "VENV=.another")
    assert old.returncode != 0 and "does not run as Python 3.11 or newer" in old.stderr
