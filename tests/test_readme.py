# SPDX-License-Identifier: Apache-2.0
"""The README's blocks run when they are pasted alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from scripts.plot_results import section, tables
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(info: str) -> list[str]:
    """Return the fenced blocks of a kind."""
    return re.findall(rf"^```{info}\n(.*?)^```", TEXT, re.S | re.M)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_runs_alone(block: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), names)
    assert names["compiled"](names["x"]).shape == names["x"].shape


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, and an environment to activate."""
    root = tmp_path_factory.mktemp("clone")
    small = BertConfig(layers=1, hidden=32, heads=2, sequence=16, ffn=64, vocabulary=64)
    onnx.save(build_bert(small), str(root / "model.onnx"))
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    (programs / "tvm-stitch").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tvm_stitch.cli "$@"\n')
    (programs / "tvm-stitch").chmod(0o755)
    return root


@pytest.mark.parametrize("block", blocks("sh"))
def test_commands_run_alone(block: str, clone: Path) -> None:
    """In a shell whose environment is activated."""
    paths = os.pathsep.join([str(README.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-e", "-c", f"source .venv/bin/activate\n{block}"], cwd=clone, capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    if "--html" in block:
        assert (clone / "report.html").is_file() and (clone / "out" / "model.so").is_file()


def test_the_beginning_is_short() -> None:
    """Five lines of PyTorch, imports included, and three of the command line."""
    (python,), (shell,) = blocks("python"), blocks("sh")
    lines = [line for line in python.splitlines() if line]
    assert len(lines) == 5 and len(shell.splitlines()) == 3


def test_the_caption_says_what_the_figure_shows() -> None:
    found = tables(section("models-gpu.md", "Whole models on a GPU"))
    ratios = [r for table in found for r in table.ratios.values()]
    faster, equal = sum(r > 1 for r in ratios), sum(r == 1 for r in ratios)
    others = f", and as much in {equal}" if equal else ""
    assert f"in {faster} of {len(ratios)} cases{others}]" in TEXT
    slower = {name for table in found for name, r in table.ratios.items() if r < 1}
    page = section("models-gpu.md", "Whole models on a GPU")
    assert [name for name in slower if f"**The {name.upper()} loses**" not in page] == [], "losses are told"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", TEXT)
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
