# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends a command as an interrupt does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvm_stitch.cli.termination import Terminated, terminating

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = """
import subprocess, sys, tempfile, time
from tvm_stitch.cli import program

def run(args, progress):
    with tempfile.TemporaryDirectory(prefix="work"):
        child = subprocess.Popen(["sleep", "60"])
        print(child.pid, flush=True, file=sys.__stdout__)
        time.sleep(60)

program.run.run = run
program.run.check = lambda args: None
program.import_compiler = lambda: None
sys.exit(program.main(["run", "model"]))
"""


def _is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_cleans_up(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert _is_there(child) and len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "tvm-stitch: terminated\n")
    assert list(tmp_path.iterdir()) == []
    end = time.monotonic() + 30
    while _is_there(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _is_there(child)


def test_the_handler_is_put_back() -> None:
    with pytest.raises(Terminated), terminating():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda _number, _frame: None], ids=["ignored", "own"])
def test_a_program_keeps_its_own_handler(handler: object) -> None:
    before = signal.signal(signal.SIGTERM, handler)  # type: ignore[arg-type]
    try:
        with terminating():
            assert signal.getsignal(signal.SIGTERM) == handler
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_children_of_the_program_stay() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        with pytest.raises(Terminated), terminating():
            signal.raise_signal(signal.SIGTERM)
        assert child.poll() is None
        child.kill()
