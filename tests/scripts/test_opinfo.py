# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator tests: a small sample of them, crashes of children, and the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from _opinfo_samples import compared, operators, outcomes, samples

from scripts import opinfo
from scripts.opinfo import Request, Result, details, is_aside, requests_for, run, summary


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_sample_is_right(dtype: str) -> None:
    chosen = []
    for name in ("add", "any", "cumsum", "index_select", "remainder", "sort"):
        chosen += list(samples(operators()[name], getattr(torch, dtype)))[-1:]
    assert {said[0] for said in outcomes(chosen)} == {"right"}


def test_a_crash_costs_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    (name,), _, done, count, together = json.loads(line)\n"
        "    for first in range(done, count, together):\n"
        "        group = range(first, min(first + together, count))\n"
        "        print(json.dumps(['begin', [[name, at] for at in group]]), flush=True)\n"
        "        for at in group:\n"
        "            if at == 2: os._exit(7)\n"
        "            print(json.dumps(['end', name, at, 'right', '']), flush=True)\n"
        "    print(json.dumps(['done']), flush=True)\n"
    )
    monkeypatch.setattr(opinfo, "CHILD", child)
    results = run([Request(("add",), "float32", 5)], 1, 30.0)
    assert [(r.sample, r.outcome) for r in results] == [
        (0, "right"),
        (1, "right"),
        (2, "crashed"),
        (3, "right"),
        (4, "right"),
    ]
    assert results[2].reason == "exit code 7"


def test_requests_are_restricted() -> None:
    (request,) = requests_for(["add"], ["float32"], 3)
    assert request == Request(("add",), "float32", 3)
    (floats, _) = requests_for(["cum*"], ["float32", "int64"], 0)
    assert {"cumsum", "cumprod"} <= set(floats.operators)
    with pytest.raises(ValueError, match="no operator no_such"):
        requests_for(["no_such"], ["float32"], 1)


def test_a_share_of_the_operators_is_drawn_by_a_seed() -> None:
    def drawn(share: float, seed: int) -> set[str]:
        return {name for each in requests_for(["a*"], ["float32"], 1, share, seed) for name in each.operators}

    everything = drawn(1.0, 0)
    assert drawn(0.25, 0) == drawn(0.25, 0) != drawn(0.25, 1)
    assert drawn(0.25, 0) < everything and len(drawn(0.25, 0)) == round(len(everything) / 4)
    with pytest.raises(ValueError, match="a share is more than 0"):
        requests_for([], ["float32"], 1, 0.0)


def test_wrong_numbers_types_and_places_of_nan_are_seen() -> None:
    want = [torch.tensor([1.0, float("nan")])]
    assert compared([np.float32([1, np.nan])], want, None)[0] == "right"
    for wrong in (np.float32([1.1, np.nan]), np.float32([1, 1]), np.float64([1, np.nan]), np.float32([1])):
        assert compared([wrong], want, None)[0] == "wrong"


def test_tables() -> None:
    results = [
        Result("add", "float32", 0, "right", ""),
        Result("foo", "float32", 0, "refused", "foo.default: no | converter"),
        Result("linalg.qr", "float32", 0, "refused", "it is aside"),
        Result("rand", "float32", 0, "skipped", "random"),
    ]
    assert "| float32 | 3 | 1 | 0 | 2 | 0 | 0 | 50.0% |" in summary(results)
    assert "`foo`" in details(results) and "`add`" not in details(results) and "\\|" in details(results)
    assert is_aside("linalg.qr") and not is_aside("add")
