# SPDX-License-Identifier: Apache-2.0
"""Architectures of other packages: outcomes of small modules, crashes and time limits of children, and the tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _architecture_run import Built, Case, difference, outcomes
from families.registry import ARCHITECTURES, chosen
from families.spec import Architecture, Tensors

from scripts import architectures
from scripts.architectures import Request, Result, logged, report, requests_for, run


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


def _architecture(build: Callable[[], Any]) -> Architecture:
    return Architecture("tiny", "own", "torch", build, lambda n: (torch.randn(n, 4),), "batch", ((0,),))


def _words(build: Callable[[], Any], dynamic: bool) -> list[tuple[str, str]]:
    built = Built(_architecture(build), dynamic)
    return [
        (said.word, said.reason) for _, said in outcomes(built, ["torch"], stock=True) if said is not None
    ]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_is_right(dynamic: bool) -> None:
    assert _words(_Scaled, dynamic) == [("right", "")]
    assert _words(lambda: Tensors(_Scaled()), dynamic) == [("right", "")]


def test_a_refused_model_has_its_operator() -> None:
    class Refused(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x @ x.T)

    ((word, reason),) = _words(Refused, False)
    assert word == "refused" and "linalg_inv_ex" in reason


def test_wrong_numbers_types_and_shapes_are_seen() -> None:
    want = np.float32([[1.0, 1000.0]])
    case = Case([], [want, np.int64([3])], [want.astype("float64"), np.int64([3])])
    assert difference([want + np.float32(0.01), np.int64([3]), want], case) == ""
    assert "error" in difference([want + 1, np.int64([3])], case)
    assert "differ" in difference([want, np.int64([4])], case)
    assert "NaN 1" in difference([np.float32([[np.nan, 1000]]), np.int64([3])], case)
    assert "instead of float32[1, 2]" in difference([want.astype("float64"), np.int64([3])], case)
    assert difference([want], case) == "1 results instead of 2"


def test_a_crash_and_a_hang_cost_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    name, dynamic, paths, stock = json.loads(line)\n"
        "    for path in paths:\n"
        "        print(json.dumps(['begin', path]), flush=True)\n"
        "        if (name, path) == ('crash', 'torch'): os._exit(7)\n"
        "        if (name, path) == ('hang', 'onnx'): time.sleep(60)\n"
        "        print(json.dumps(['end', path, 'right', '', [['compile', 1.5]]]), flush=True)\n"
        "    print(json.dumps(['done']), flush=True)\n"
    )
    monkeypatch.setattr(architectures, "CHILD", child)
    requests = [Request(name, "own", "static", ("torch", "onnx")) for name in ("crash", "hang", "fine")]
    results = run(requests, 1, 2.0, 4.0)
    assert [(r.name, r.path, r.outcome, r.reason) for r in results] == [
        ("crash", "torch", "crashed", "exit code 7"),
        ("crash", "onnx", "right", ""),
        ("hang", "torch", "right", ""),
        ("hang", "onnx", "too slow", "no answer in time"),
        ("fine", "torch", "right", ""),
        ("fine", "onnx", "right", ""),
    ]
    assert results[-1].seconds == {"compile": 1.5}


def test_at_least_ninety_architectures_and_twenty_dynamic_ones() -> None:
    assert len(requests_for(list(ARCHITECTURES.values()), False, ["torch", "onnx"], False)) >= 90
    dynamic = requests_for(list(ARCHITECTURES.values()), True, ["torch", "onnx"], False)
    assert len(dynamic) >= 20 and {"batch", "length", "cache"} <= {each.variant for each in dynamic}
    assert {each.name for each in chosen("bert,llama*")} >= {"bert", "llama", "llama-step"}
    for wrong in (("no-such", ""), ("", "no-such")):
        with pytest.raises(ValueError, match="no-such"):
            chosen(*wrong)


def test_tables(tmp_path: Path) -> None:
    seconds = {"compile": 1.0, "stock": 2.0}
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"name": "a", "family": "own", "variant": "static", "path": "torch", "outcome": "failed", "reason": "x", '
        '"seconds": {}}\n'
    )
    former = logged(log)
    results = [
        Result("a", "own", "static", "torch", "right", "", seconds),
        Result("b", "own", "batch", "onnx", "refused", "no | converter", {}),
        Result("c", "own", "static", "onnx", "absent", "No module", {}),
    ]
    text = report([*former[:0], *results])
    assert former[0].outcome == "failed"
    assert "| torch | static | 1 | 1 | 0 |" in text and "median ratio 0.50" in text
    assert "| `b` | onnx | batch | refused | no \\| converter |" in text and "| own | 1 of 2 |" in text
