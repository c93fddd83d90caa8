# SPDX-License-Identifier: Apache-2.0
"""A sample of corrupted ONNX files through the command line, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from _onnx_corruptions import CORRUPTIONS, corrupted, valid_models

from scripts.corrupt_onnx import OUTCOMES, run, run_one, table
from tvm_stitch import cli


def test_a_sample_ends_in_messages(tmp_path: Path) -> None:
    found = run(count=24, seed=7, first=0, every=8, limit=60.0, keep=tmp_path)
    assert sum(found.values()) == 24
    assert {outcome for _, outcome in found} <= {"compiled", "refused", "failed"}, table(found)
    assert sum(n for (_, outcome), n in found.items() if outcome == "refused") > 8


def test_a_file_is_made_again_from_its_number() -> None:
    models = valid_models()
    assert [corrupted(models, 3, n) for n in range(20)] == [corrupted(models, 3, n) for n in range(20)]
    assert len({corrupted(models, 3, n)[0] for n in range(200)}) > len(set(CORRUPTIONS)) / 2


@pytest.mark.parametrize(
    ("says", "outcome"), [(1 / 3, "traceback"), (0, "compiled"), (2, "refused"), (130, "traceback")]
)
def test_outcomes(says: object, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def main(_argv: object) -> object:
        if isinstance(says, float):
            raise ValueError("not caught")
        return says

    monkeypatch.setattr(cli, "main", main)
    assert run_one([], 5.0)[0] == outcome and outcome in OUTCOMES


def test_a_hang_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from scripts import corrupt_onnx

    def main(_argv: object) -> int:
        while True:
            pass

    monkeypatch.setattr(cli, "main", main)
    before = signal.signal(signal.SIGALRM, corrupt_onnx._stop)
    try:
        assert run_one([], 0.2)[0] == "hang"
    finally:
        signal.signal(signal.SIGALRM, before)
