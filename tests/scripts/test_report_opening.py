# SPDX-License-Identifier: Apache-2.0
"""The check of how long reports take to open: it runs, and says what is wrong."""

from __future__ import annotations

import json

import pytest

from scripts._browser import Outcome, find_browser

pytest.importorskip("torch")

import report_opening as script  # noqa: E402

SMALL = ["unet-block", "--size", "small", "--repeats", "1"]


@pytest.mark.skipif(find_browser() is None, reason="no Chromium found: install one, or name one in CHROMIUM")
def test_the_report_of_a_block_opens(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(SMALL) == 0
    header, row = capsys.readouterr().out.strip().splitlines()
    assert "opens in" in header and row.split()[0] == "unet-block" and int(row.split()[1]) > 10


@pytest.mark.parametrize(
    ("seconds", "complaints", "panel", "said"),
    [
        (3.5, [], True, "longer than 3 s"), (0.5, ["it broke"], True, "it broke"), (0.5, [], False, "no panel opened"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(
    seconds: float, complaints: list[str], panel: bool, said: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    outcome = Outcome({"cards": 1, "panel": panel}, 1.0, complaints)
    monkeypatch.setattr(script, "opened", lambda *_: (seconds, outcome))
    monkeypatch.setattr(script, "find_browser", lambda: "chromium")
    assert script.main(["unet-block", "--size", "small", "--target", "llvm"]) == 1
    assert capsys.readouterr().out.rstrip().endswith(said)


def test_without_a_browser_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "find_browser", lambda: None)
    assert script.main(SMALL) == 2
    assert "no Chromium found" in capsys.readouterr().err


def test_what_is_opened_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of several browsers, each with a folder of its own."""
    folders = []

    def browser(page: str, steps: str, folder: object) -> Outcome:
        folders.append(folder)
        return Outcome(json.loads(page), 0.0, [])

    monkeypatch.setattr(script, "in_browser", browser)
    seconds, outcome = script.opened("5", "", 3)
    assert outcome.found == 5 and seconds < 1 and len(set(folders)) == 3
