# SPDX-License-Identifier: Apache-2.0
"""The benchmark of experts compares its results and prints one line of times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_experts.py"
SMALL = "--layers 1 --experts 3 --hidden 16 --inner 24 --blocks 1 --repeats 1"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_a_small_model() -> None:
    done = run(*SMALL.split())
    assert done.returncode == 0, done.stderr
    title, line = done.stdout.splitlines()
    assert title.split()[-1] == "error"
    assert line.split()[:3] == ["1", "16", "24"]
    assert float(line.split()[-1]) < 1e-5


@pytest.mark.parametrize("wrong", ["0", "-1"])
def test_a_wrong_size(wrong: str) -> None:
    done = run("--experts", wrong)
    assert done.returncode == 2
    assert "all numbers must be 1 or more" in done.stderr
