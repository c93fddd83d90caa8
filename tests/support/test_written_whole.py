# SPDX-License-Identifier: Apache-2.0
"""Files that appear together and complete, or not at all."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tvm_stitch.support import written_whole as module
from tvm_stitch.support.written_whole import written_whole


def write(output: Path, text: str, then: BaseException | None = None) -> None:
    with written_whole(output) as folder:
        (folder / "a").write_text(text)
        if then is not None:
            raise then
        (folder / "b").write_text(text)


def held(output: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(output.iterdir())}


def test_all_files_appear(tmp_path: Path) -> None:
    write(tmp_path / "new" / "out", "one")
    assert held(tmp_path / "new" / "out") == {"a": "one", "b": "one"}
    write(tmp_path / "new" / "out", "two")
    assert held(tmp_path / "new" / "out") == {"a": "two", "b": "two"}


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt(), MemoryError()], ids=repr)
def test_a_failure_leaves_everything_as_it_was(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        write(tmp_path / "new" / "out", "one", error)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "out", "one")
    (tmp_path / "out" / "other").write_text("mine")
    with pytest.raises(type(error)):
        write(tmp_path / "out", "two", error)
    assert held(tmp_path / "out") == {"a": "one", "b": "one", "other": "mine"}


def test_an_interrupt_does_not_part_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        original(source, target)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, "one")
    assert held(tmp_path) == {"a": "one", "b": "one"}


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        write(tmp_path / "file" / "out", "one")
    assert held(tmp_path) == {"file": "mine"}
