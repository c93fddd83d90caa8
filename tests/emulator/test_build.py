# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels are kept in a folder, and loaded from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from cuda_emulator import build, compiled

SOURCE = """
#include "emu_cuda.h"
extern "C" __global__ void k(float* a) { a[0] = 1; }
EMU_ENTRY(k)
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_EMULATOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    compiled._temporary.cache_clear()


def test_the_users_cache_folder(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build.cache_folder() == tmp_path / "cache" / "cuda_emulator"


def test_a_named_folder_must_be_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_CACHE_DIR", str(tmp_path / "mine"))
    assert build.cache_folder() == tmp_path / "mine"
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(PermissionError, match="mine may be written by others"):
        build.cache_folder()


@pytest.mark.parametrize("obstacle", ["a file", "a link to what others write", "a folder that others write"])
def test_the_fallback_is_private_and_cannot_be_foretold(tmp_path: Path, obstacle: str) -> None:
    above = tmp_path / "cache"
    if obstacle == "a file":
        above.write_text("")
    else:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        theirs.chmod(0o777)
        if obstacle == "a link to what others write":
            above.symlink_to(theirs)
        else:
            theirs.rename(above)
    # A process of another user could have prepared such a folder, were the name known.
    (tmp_path / "temp" / f"cuda_emulator-{os.getuid()}").symlink_to(tmp_path / "prepared")
    with pytest.warns(UserWarning, match="compiled kernels are not kept"):
        folder = build.cache_folder()
    assert folder == build.cache_folder()
    assert folder.parent == tmp_path / "temp" and not folder.is_symlink()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "prepared").exists()


def test_the_fallback_is_removed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    code = "from cuda_emulator.compiled import cache_folder; print(cache_folder())"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temp"), "PYTHONPATH": str(build.RUNTIME.parents[1])},
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path / "temp")) and not Path(done.stdout.strip()).exists()


def test_a_library_that_others_may_write_is_not_loaded(tmp_path: Path) -> None:
    before = os.umask(0)  # what the compiler leaves behind is closed to others, whatever the umask
    try:
        build.load_kernels(SOURCE)
    finally:
        os.umask(before)
    (library,) = build.cache_folder().glob("kernels-*.so")
    library.chmod(0o777)
    build.load_kernels.cache_clear()
    with pytest.raises(PermissionError, match="regular file"):
        build.load_kernels(SOURCE)
