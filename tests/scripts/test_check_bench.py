# SPDX-License-Identifier: Apache-2.0
"""The check of bench: files for both peers, a plain loop of each, and the exit code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import check_bench  # noqa: E402

from tvm_stitch.execution.timing import Times  # noqa: E402


def test_both_peers_run_what_is_exported(tmp_path: Path) -> None:
    check_bench.exported("mlp", "small", tmp_path)
    results = [
        np.asarray(next(iter(check_bench.call_of(tmp_path / f"mlp{suffix}")())))
        for suffix in check_bench.PEERS
    ]
    np.testing.assert_allclose(results[0], results[1].reshape(-1, results[1].shape[-1])[0], atol=1e-4)


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
    times = Times(tuple(bench)), Times((1.0, 1.0, 1.0))
    monkeypatch.setattr(check_bench.os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(check_bench, "compared", lambda file, rounds: times)
    monkeypatch.setattr(check_bench.multiprocessing, "get_context", lambda kind: check_bench.multiprocessing)
    monkeypatch.setattr(check_bench, "exported", lambda *_: None)
    assert check_bench.main(["--models", "mlp"]) == code
    assert f"{sorted(bench)[1]:.2f}" in capsys.readouterr().out
