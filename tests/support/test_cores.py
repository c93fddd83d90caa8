# SPDX-License-Identifier: Apache-2.0
"""Cores count once, however many threads they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_stitch.device import device_model
from tvm_stitch.support import cores
from tvm_stitch.support.cores import physical_cores, sleep_soon, threads, use_all_cores


def test_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for processor in range(4):
        (tmp_path / f"cpu{processor}").write_text(f"{processor % 2},{processor % 2 + 2}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 7}, raising=False)
    assert physical_cores(str(tmp_path / "cpu{}")) == 3  # two of two threads, and one that nothing is said of


@pytest.mark.parametrize(
    "text, allowed",
    [("150000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", None), ("", None), ("-1 100000", None)],
)
def test_a_containers_limit_counts(text: str, allowed: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cores.processors_allowed(str(tmp_path / "cpu.max")) == allowed
    if text.split():
        parts = [tmp_path / f"{number}" for number in range(2)]
        for part, word in zip(parts, text.split(), strict=True):
            part.write_text(f"{word}\n")
        assert cores.processors_allowed(str(tmp_path / "none"), (str(parts[0]), str(parts[1]))) == allowed
    assert cores.processors_allowed(str(tmp_path / "none"), (str(tmp_path / "none"), "")) is None


def test_no_more_cores_than_a_container_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "processors_allowed", lambda: 1)
    assert cores.physical_cores() == 1


def test_a_number_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    use_all_cores()
    assert os.environ["TVM_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("said", "number"),
    [("7", 7), (" 3 of 4", 3), ("0", 1), ("-2", 1), ("", 1), ("many", 1), (None, os.cpu_count())],
)
def test_threads_are_counted_as_tvm_does(
    said: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("TVM_NUM_THREADS", said)
    assert threads() == number
    assert device_model("llvm").sms == number


@pytest.mark.parametrize("said", ["0", "-1", "many", "1.5", "99999999", "２"])
def test_what_is_no_number_of_threads(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", said)
    with pytest.raises(ValueError, match="TVM_NUM_THREADS must be a number of threads, 1 to 65536, not"):
        use_all_cores()


def test_an_empty_number_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "")
    use_all_cores()
    assert int(os.environ["TVM_NUM_THREADS"]) == physical_cores()


@pytest.mark.parametrize(("name", "said"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_how_openmp_waits_stays_where_it_is_said(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, said)
    sleep_soon()
    assert {each: os.environ.get(each) for each in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} == {
        "GOMP_SPINCOUNT": None,
        "OMP_WAIT_POLICY": None,
        name: said,
    }


@pytest.mark.parametrize(
    "imports",
    ["from tvm_stitch.cli.heavy import import_compiler; import_compiler()", "import run_demo"],
    ids=["tvm-stitch bench", "make run"],
)
def test_threads_that_wait_beside_what_is_timed_sleep_soon(imports: str) -> None:
    root = Path(__file__).resolve().parents[2]
    told = {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": os.pathsep.join([str(root), str(root / "scripts")])}
    unset = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", f"{imports}; import torch"]
    run = subprocess.run(
        command, env={**unset, **told}, capture_output=True, text=True, check=True, timeout=300
    )
    assert "GOMP_SPINCOUNT = '1000'" in run.stderr


RUN = """
import os
{first}
import tvm_stitch
import tvm
count = tvm.get_global_func("runtime.NumThreads")()
print(count, len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinities")
@pytest.mark.parametrize("first", ["", "import tvm"])
def test_the_import_gives_tvm_all_cores(first: str) -> None:
    """TVM alone runs on half of the processors. With one thread it binds the whole process to one of them."""
    environment = {name: value for name, value in os.environ.items() if name != "TVM_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    allowed = len(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(first=first)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(physical_cores()), str(allowed)]


def test_an_invalid_number_does_not_keep_the_package_from_being_imported() -> None:
    environment = {**os.environ, "TVM_NUM_THREADS": "many", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", "import tvm_stitch"], env=environment, check=False)
    assert done.returncode == 0
