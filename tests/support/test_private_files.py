# SPDX-License-Identifier: Apache-2.0
"""Folders and files that others could have prepared are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvm_stitch.support.private_files import check_own_file, check_trusted, private_folder

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


def test_a_missing_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert made.is_dir() and [p.stat().st_mode & 0o777 for p in (made, made.parent)] == [0o700] * 2
    assert private_folder(made) == made


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a")
    for mode in (0o770, 0o707, 0o1777):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match="a may be written by others"):
            private_folder(folder)


def test_folders_above_count_but_for_the_sticky_bit(tmp_path: Path) -> None:
    inner = private_folder(tmp_path / "a" / "b")
    inner.parent.chmod(0o777)  # others could put another b there
    with pytest.raises(PermissionError, match="b is not private: .*a may be written"):
        private_folder(inner)
    inner.parent.chmod(0o1777)
    assert private_folder(inner) == inner


@AS_ROOT
@pytest.mark.parametrize("which", ["a", "a/b"])
def test_folders_of_other_users_are_refused(tmp_path: Path, which: str) -> None:
    inner = private_folder(tmp_path / "a" / "b")
    os.chown(tmp_path / which, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        private_folder(inner)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    target = private_folder(tmp_path / "target")
    (tmp_path / "link").symlink_to(target)
    assert private_folder(tmp_path / "link" / "x") == target / "x"
    target.chmod(0o777)
    with pytest.raises(PermissionError, match="target may be written"):
        private_folder(tmp_path / "link" / "x")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(PermissionError, match="not a folder"):
        private_folder(tmp_path / "f")


def test_only_own_regular_files_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_text("")
    path.chmod(0o755)
    assert check_own_file(path) == path
    path.chmod(0o775)
    (tmp_path / "link").symlink_to(path)
    for bad in (path, tmp_path / "link", tmp_path):
        with pytest.raises(PermissionError, match="regular file"):
            check_own_file(bad)


def _file(folder: Path) -> Path:
    folder.chmod(0o755)
    path = folder / "model.so"
    path.write_bytes(b"code")
    path.chmod(0o755)
    return path


def test_a_file_of_this_user_is_trusted(tmp_path: Path) -> None:
    path = _file(tmp_path)
    check_trusted(path)
    tmp_path.chmod(0o1777)  # as /tmp: others can put files there, but not replace this one
    check_trusted(path)


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o757, 0o777])
def test_a_file_that_others_may_write_is_not_trusted(tmp_path: Path, which: str, mode: int) -> None:
    path = _file(tmp_path)
    changed = path if which == "file" else tmp_path
    changed.chmod(mode)
    with pytest.raises(PermissionError, match=f"may write to {changed}; .*chmod go-w {changed}"):
        check_trusted(path)


@AS_ROOT
def test_a_group_of_others_is_not_trusted(tmp_path: Path) -> None:
    path = _file(tmp_path)
    path.chmod(0o775)
    check_trusted(path)  # the group of this user alone
    os.chown(path, -1, 65534)
    with pytest.raises(PermissionError, match="may write to"):
        check_trusted(path)


@AS_ROOT
@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_file_of_another_user_is_not_trusted(tmp_path: Path, which: str) -> None:
    path = _file(tmp_path)
    os.chown(path if which == "file" else tmp_path, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to user 65534.* cp -r"):
        check_trusted(path)


def test_the_file_behind_a_link_counts(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = _file(tmp_path / "inner")
    (tmp_path / "link").symlink_to(path)
    check_trusted(tmp_path / "link")
    path.chmod(0o777)
    with pytest.raises(PermissionError, match="inner/model.so"):
        check_trusted(tmp_path / "link")
