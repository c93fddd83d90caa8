# SPDX-License-Identifier: Apache-2.0
"""Contenders run one at a time, and their processes end with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import model  # noqa: F401  (a fixture)
from tvm_stitch.cli.contenders.process import processes
from tvm_stitch.cli.contenders.ready import PEER, STITCHED
from tvm_stitch.cli.errors import Failure, UsageError
from tvm_stitch.cli.program import parser


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_only_the_contender_whose_turn_it_is_runs(model: Path) -> None:  # noqa: F811
    args = parser().parse_args(["bench", str(model), "--shape", "x=8,16"])
    with processes((STITCHED, PEER), args) as contenders:
        outputs = {name: process.prepared() for name, process in contenders.items()}
        pids = {name: process._process.pid for name, process in contenders.items()}
        assert np.allclose(outputs[STITCHED][0][0], outputs[PEER][0][0], atol=1e-5)
        assert outputs[PEER][1]["name"] == "ONNX Runtime" and outputs[STITCHED][1]["kernels"]["total"] == 3
        assert 0 < min(contenders[PEER].turn()) < 0.5
        assert {_state(pid) for pid in pids.values()} == {"T"}, "both are stopped between turns"
        assert {os.getsid(pid) for pid in pids.values()} == {os.getsid(0)}, "as a program of the user"
        assert os.getpgid(0) not in {os.getpgid(pid) for pid in pids.values()}, (
            "an interrupt is for the command"
        )
        os.kill(pids[PEER], signal.SIGKILL)
        with pytest.raises(Failure, match=r"the process of peer ended \(SIGKILL\)"):
            contenders[PEER].turn()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_errors_of_a_model_are_those_of_the_command(model: Path, tmp_path: Path) -> None:  # noqa: F811
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    args = parser().parse_args(["bench", str(text)])
    with processes((STITCHED,), args) as contenders, pytest.raises(UsageError, match="not a valid ONNX"):
        contenders[STITCHED].prepared()


_PARENT = """
import os, signal, sys
from tvm_stitch.cli.contenders.process import processes
from tvm_stitch.cli.program import parser
with processes(("peer",), parser().parse_args(["bench", sys.argv[1], "--shape", "x=8,16"])) as made:
    made["peer"].prepared()
    print(made["peer"]._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_contender_does_not_outlive_a_killed_command(model: Path) -> None:  # noqa: F811
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, str(model)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, end = int(done.stdout), time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z" and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists() or _state(pid) == "Z"
