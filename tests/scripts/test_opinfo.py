# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operator tests: a small sample of them, crashes of children, and the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from _child_process import LinesOfJson, environment
from _opinfo_samples import EXECUTORS, compared, operators, outcomes, samples

from scripts import opinfo
from scripts.opinfo import Request, Result, details, is_aside, requests_for, run, summary
from tvm_stitch.importers.torch import from_exported_program


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_sample_is_right(dtype: str) -> None:
    chosen = []
    for name in ("add", "any", "cumsum", "index_select", "remainder", "sort"):
        chosen += list(samples(operators()[name], getattr(torch, dtype)))[-1:]
    if dtype == "float32":
        drawn = [list(samples(operators()[name], torch.float32))[-1] for name in ("rand_like", "nonzero")]
        (*said, last, one) = outcomes([*chosen, *drawn])
        assert last == ("skipped", "random") and one == ("right", "")
    else:
        said = outcomes(chosen)
    assert {each[0] for each in said} == {"right"}


CHILD = """
import json, os, sys
for line in sys.stdin:
    names, _, known, count, together, alone = json.loads(line)
    given = [[name, at] for name in names for at in range(count) if [name, at] not in known]
    while given:
        group = given[: 1 if alone > 0 else together]
        given, alone = given[len(group) :], alone - 1
        print(json.dumps(["begin", group]), flush=True)
        for name, at in group:
            if at == 2:
                os._exit(7)
        for name, at in group:
            print(json.dumps(["end", name, at, "right", str(len(group))]), flush=True)
    print(json.dumps(["done"]), flush=True)
"""
"""A child that sample 2 of an operator ends. Its reasons are the sizes of programs."""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the script's child."""
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    monkeypatch.setattr(opinfo, "CHILD", path)
    monkeypatch.setattr(opinfo, "TOGETHER", 4)


@pytest.mark.usefixtures("child")
def test_a_crash_costs_one_sample() -> None:
    results = run([Request(("add",), "float32", 7)], 1, 30.0)
    said = [(r.sample, r.outcome, r.reason) for r in results]
    alone = [(0, "right", "1"), (1, "right", "1"), (2, "crashed", "exit code 7"), (3, "right", "1")]
    together = [(each, "right", "3") for each in (4, 5, 6)]
    assert said == [*alone, *together, (7, "done", "")]


@pytest.mark.usefixtures("child")
def test_a_log_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    lines = ['["add", "float32", 0, "refused", "before"]', '["sub", "float32", 2, "done", ""]', '["add", "fl']
    log.write_text("\n".join(lines))
    options = ["--dtypes", "float32", "--samples", "2", "--log", str(log)]
    opinfo.main(["--ops", "add,sub", *options])
    said = [(r.operator, r.sample, r.outcome) for r in opinfo.logged(log)]
    assert said == [("add", 0, "refused"), ("sub", 2, "done"), ("add", 1, "right"), ("add", 2, "done")]
    once = log.read_text()
    opinfo.main(["--ops", "add,sub", *options])
    assert log.read_text() == once
    capsys.readouterr()
    opinfo.main(["--markdown", str(log)])
    assert "| float32 | 2 | 1 | 0 | 1 | 0 | 0 | 50.0% |" in capsys.readouterr().out
    opinfo.main(["--ops", "add,sub", *options, "--again", "refused,wrong"])
    assert {r.outcome for r in opinfo.logged(log)} == {"right", "done"}
    assert len(log.read_text().splitlines()) == len(once.splitlines()) + 2


def test_a_child_runs_the_samples_that_are_left() -> None:
    first, second, third = ["add", 5], ["cumsum", 0], ["cumsum", 2]
    lines = LinesOfJson([str(opinfo.CHILD)])
    with environment(opinfo.ALONE):
        for alone, programs in (
            (0, [[first, second, third]]),
            (1, [[first], [second, third]]),
        ):
            lines.write([["add", "cumsum"], "float32", [["add", 0]], 2, 24, alone])
            heard = []
            while (line := lines.read(120.0)) != ["done"]:
                assert line is not None, lines.close()
                heard.append(line)
            assert [each[1] for each in heard if each[0] == "begin"] == programs
            assert [each[3] for each in heard if each[0] == "end"] == ["right"] * 3
    lines.close()


def test_requests_are_restricted() -> None:
    (request,) = requests_for(["add"], ["float32"], 3)
    assert request == Request(("add",), "float32", 3)
    requests = requests_for(["cum*"], ["float32", "int64"], 0)
    assert {"cumsum", "cumprod"} <= {
        name for each in requests if each.dtype == "float32" for name in each.operators
    }
    with pytest.raises(ValueError, match="no operator no_such"):
        requests_for(["no_such"], ["float32"], 1)


def test_a_share_of_the_operators_is_drawn_by_a_seed() -> None:
    def drawn(share: float, seed: int) -> set[str]:
        return {name for each in requests_for(["a*"], ["float32"], 1, share, seed) for name in each.operators}

    def order(seed: int) -> list[str]:
        return [each.dtype for each in requests_for(["a*"], ["float32", "int64"], 1, 1.0, seed)]

    assert order(0) == order(0) != order(1) and order(0) not in (sorted(order(0)), sorted(order(0))[::-1])
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


def test_kernels_of_cuda_run_in_the_emulator() -> None:
    class Halved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1) / 2

    x = torch.randn(3, 7)
    mod = from_exported_program(torch.export.export(Halved(), (x,)))
    (found,) = EXECUTORS["cuda"](mod, [x.numpy()])
    np.testing.assert_allclose(found, Halved()(x).numpy(), rtol=1e-5)
