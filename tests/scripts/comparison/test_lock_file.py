# SPDX-License-Identifier: Apache-2.0
"""Lock files in folders that others write to: made once, and nothing else is followed or opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from comparison.lock_file import open_own_file

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


def test_a_lock_file_is_made_once_and_its_content_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    os.close(open_own_file(path))
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("kept")
    os.close(open_own_file(path))
    assert path.read_text() == "kept"


def test_a_lock_file_is_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(PermissionError, match="symbolic link"):
        open_own_file(tmp_path / "lock")
    assert not victim.exists()


def test_a_lock_file_is_a_regular_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PermissionError, match="regular file"):
        open_own_file(tmp_path / "fifo")


@AS_ROOT
def test_a_lock_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.close(open_own_file(tmp_path / "lock"))
    os.chown(tmp_path / "lock", 65534, -1)
    with pytest.raises(PermissionError, match="regular file of user"):
        open_own_file(tmp_path / "lock")
