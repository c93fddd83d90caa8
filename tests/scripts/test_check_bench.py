# SPDX-License-Identifier: Apache-2.0
"""The check of bench: files for both peers, a plain loop of each, and the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import check_bench  # noqa: E402


def test_both_peers_run_what_is_exported(tmp_path: Path) -> None:
    check_bench.exported("mlp", "small", tmp_path)
    calls = [
        check_bench.call_of(tmp_path / f"mlp{suffix}", contender)
        for suffix, contender in check_bench.ROWS.values()
    ]
    first, *others = (np.asarray(found[0] if isinstance(found := call(), list) else found) for call in calls)
    assert len(others) == 3
    for other in others:
        np.testing.assert_allclose(first, other, atol=1e-4)


def test_the_first_half_of_a_turn_is_not_counted() -> None:
    calls: list[int] = []
    spent = check_bench.turn(lambda: calls.append(0), 0.0, 9)
    assert len(calls) == 9 and len(spent) == 5


@pytest.mark.parametrize(
    ("load", "bench", "code"),
    [
        (0.0, [1.05] * 3, 0),
        (0.0, [1.2] * 3, 1),
        (0.0, [0.8] * 3, 1),
        (0.0, [1.0, 1.2, 1.2], 1),
        (64.0, [1.0, 300.0, 300.0], 0),
        (64.0, [1.2, 1.2, 1.2], 1),
    ],
)
def test_a_ratio_that_is_off_is_a_failure(
    load: float,
    bench: list[float],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The medians count, and on a busy machine the fastest calls."""
    turns = [bench], [[1.0, 1.0, 1.0]]
    monkeypatch.setattr(check_bench.os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(check_bench, "compared", lambda *_: turns)
    monkeypatch.setattr(check_bench.multiprocessing, "get_context", lambda kind: check_bench.multiprocessing)
    monkeypatch.setattr(check_bench, "exported", lambda *_: None)
    assert check_bench.main(["--models", "mlp"]) == code
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[4] == f"{sorted(bench)[1]:.2f}" and row[-6:-3] == [str(int(sorted(bench)[1] > 3)), "of", "1"]


def test_rows_go_on_until_enough_turns_are_not_slow() -> None:
    fast, slow = [1.0, 1.0], [1.0, 50.0, 50.0]
    assert check_bench.enough([fast] * 3, [fast] * 3) and check_bench.enough([fast], [fast])
    assert not check_bench.enough([fast, slow, slow, slow], [fast] * 4)
    assert check_bench.enough([fast] * 3 + [slow] * 4, [slow] * 2 + [fast] * 5)
