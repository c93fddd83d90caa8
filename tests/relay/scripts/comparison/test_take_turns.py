# SPDX-License-Identifier: Apache-2.0
"""Tuning processes that measure in turns."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
import tvm
from comparison.take_turns import lock_path, measured_in_turns

RUNNER = "auto_scheduler.local_runner.run"


def is_free(lock: Path) -> bool:
    """Return whether another process could measure now."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_lock_is_held_while_candidates_run_and_no_longer(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    seen = []

    def run(*args: object) -> int:
        seen.append((args, is_free(lock)))
        if args == (0,):
            raise ValueError("no candidate")
        return 5

    original = tvm.get_global_func(RUNNER)
    tvm.register_func(RUNNER, run, override=True)
    try:
        with measured_in_turns(lock):
            assert tvm.get_global_func(RUNNER)(1, "a") == 5
            assert is_free(lock)
            with pytest.raises(ValueError, match="no candidate"):
                tvm.get_global_func(RUNNER)(0)
            assert is_free(lock)
        tvm.get_global_func(RUNNER)(2)
    finally:
        tvm.register_func(RUNNER, original, override=True)
    assert seen == [((1, "a"), False), ((0,), False), ((2,), True)]


def test_devices_have_locks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {lock_path()}
    for devices in ("0", "1", "0,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        paths.add(lock_path())
        assert lock_path() == lock_path()
    assert len(paths) == 4


def test_a_link_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with measured_in_turns(tmp_path / "lock"), pytest.raises(Exception, match="symbolic link"):
        tvm.get_global_func(RUNNER)()
    assert not (tmp_path / "elsewhere").exists()
