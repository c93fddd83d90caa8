# SPDX-License-Identifier: Apache-2.0
"""Text of a model is shown, and not obeyed, by a terminal."""

from __future__ import annotations

import pytest

from tvm_stitch.cli import program
from tvm_stitch.cli.progress import Progress, lines_of_text, one_line


def test_control_characters_are_shown() -> None:
    assert one_line("a\x1b[2J\nb\u202ec") == r"a\x1b[2J\nb\u202ec"
    assert lines_of_text("a\x1b[2J\nb\u2028\u202e\tc é") == "a\\x1b[2J\nb\\u2028\\u202e    c é"


def test_a_result_cannot_control_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "import_compiler", lambda: None)
    monkeypatch.setattr(program.run, "check", lambda _args: None)
    monkeypatch.setattr(program.run, "run", lambda _args, _progress: ({}, "first\nsecond \x1b]0;title\x07"))
    assert program.main(["run", "model"]) == 0
    assert capsys.readouterr().out == "first\nsecond \\x1b]0;title\\x07\n"


def test_progress_is_silent_unless_enabled(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(enabled=False)("reading"):
        pass
    assert capsys.readouterr().err == ""
    with Progress(enabled=True)("reading \x1b"):
        pass
    assert capsys.readouterr().err.startswith("reading \\x1b ...\nreading \\x1b: ")
