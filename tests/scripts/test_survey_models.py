# SPDX-License-Identifier: Apache-2.0
"""The survey of models: what counts as right, and a run on this machine's CPU."""

from __future__ import annotations

import json

import pytest
import survey_models


@pytest.mark.parametrize(
    "row, word",
    [
        ({"stitched_error": 1e-3, "eager_error": 1e-3}, "right"),
        ({"stitched_error": 1.9e-3, "eager_error": 1e-4}, "right"),
        ({"stitched_error": 4e-3, "eager_error": 1e-3}, "WRONG"),
        ({"stitched_error": float("inf"), "eager_error": 1e-3}, "WRONG"),
        ({"stitched_error": 3e-2, "eager_error": 1.5e-2}, "WRONG"),
        ({"stitched_error": float("inf"), "eager_error": float("inf")}, "no reference"),
        ({"stitched_failed": "ValueError: x", "eager_error": 1e-3}, "failed"),
        ({"model": "x"}, "not ready"),
    ],
)
def test_verdict_compares_with_pytorch(row, word):
    assert survey_models.verdict(row, "float16") == word


def test_run(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    options = ["--target", "native", "--dtype", "float32", "--products", "float32", "--alone", "--jobs", "2"]
    code = survey_models.main(["unet-block", "timm:nonesuch", *options, "--json", str(log)])
    rows = {row["model"]: row for row in map(json.loads, log.read_text().splitlines())}
    assert survey_models.verdict(rows["unet-block"], "float32") == "right"
    assert rows["unet-block"]["stitched_ms"] > 0 and "inductor_ms" not in rows["unet-block"]
    assert survey_models.verdict(rows["timm:nonesuch"], "float32") == "not ready"
    assert rows["timm:nonesuch"]["ended"].startswith("code 1")
    out = capsys.readouterr().out
    assert out.count("unet-block") == 2 and code == 1


def test_nothing_begins_after_the_end(tmp_path, capsys):
    assert survey_models.main(["unet-block", "--target", "native", "--seconds", "0"]) == 0
    assert "not begun: unet-block" in capsys.readouterr().out
