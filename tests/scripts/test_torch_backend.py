# SPDX-License-Identifier: Apache-2.0
"""Models by torch.compile: outcomes of small modules, crashes and time limits of children, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from _torch_backend_run import measured
from families.spec import Architecture

from scripts import torch_backend
from scripts.torch_backend import CONTENDERS, Result, logged, report, requests_for, run


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def architecture(build: Callable[[], Any]) -> Architecture:
    return Architecture("tiny", "own", "torch", build, lambda n: (torch.randn(n, 4),))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


class Solved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        return torch.linalg.qr(y)[1].abs()


class Chosen(torch.nn.Module):
    """Takes rows at random, in PyTorch, as ViLT takes patches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1.0
        torch._dynamo.graph_break()
        chosen = torch.multinomial(torch.ones(4), 2)
        torch._dynamo.graph_break()
        return y[:, chosen] * 2.0


@torch.no_grad()
def test_models_that_draw_random_numbers_are_compared() -> None:
    found = measured(architecture(Chosen), "arguments", 0.01)
    assert found["outcome"] == "right" and 0.0 <= found["error"] < 1e-6


@pytest.mark.parametrize("contender", ["eager", "arguments", "constants"])
@torch.no_grad()
def test_a_model_is_right(contender: str) -> None:
    found = measured(architecture(Scaled), contender, 0.01)
    assert found["outcome"] == "right" and found["reason"] == "" and found["left"] == 0
    assert found["graphs"] == (contender != "eager")
    assert 0.0 <= found["error"] < 1e-6 and found["call_s"] > 0 and found["first_s"] > 0


@torch.no_grad()
def test_graphs_that_pytorch_runs_are_counted() -> None:
    found = measured(architecture(Solved), "arguments", 0.01)
    assert (found["outcome"], found["graphs"], found["left"]) == ("right", 2, 1)
    assert "PyTorch runs a graph of" in found["reason"] and "qr" in found["reason"]


@torch.no_grad()
def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("_torch_backend_run._compiled", lambda model, *_: lambda x: model(x) + 0.01)
    found = measured(architecture(Scaled), "arguments", 0.01)
    assert found["outcome"] == "wrong" and "error 0.01" in found["reason"]


def test_a_crash_and_a_hang_cost_one_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    name, contender, seconds = json.loads(line)\n"
        "    if contender == 'inductor': os._exit(7)\n"
        "    if contender == 'constants': time.sleep(60)\n"
        "    assert os.environ['TORCHINDUCTOR_FORCE_DISABLE_CACHES'] == '1'\n"
        "    print(json.dumps([{'outcome': 'right', 'graphs': 2, 'call_s': seconds}]), flush=True)\n"
    )
    monkeypatch.setattr(torch_backend, "CHILD", child)
    results = run(requests_for(["a"], CONTENDERS, 1.0, 0), limit=3.0, seconds=0.25)
    assert [(r.contender, r.outcome) for r in results] == [
        ("eager", "right"),
        ("inductor", "crashed"),
        ("arguments", "right"),
        ("constants", "too slow"),
    ]
    assert results[2].call_s == 0.25


def test_models_that_compile_slowly_are_named() -> None:
    results = [
        Result(name, contender, outcome, first_s=seconds)
        for name, contender, outcome, seconds in [
            ("a", "inductor", "right", 2.0),
            ("a", "arguments", "right", 2.9),
            ("b", "inductor", "right", 2.0),
            ("b", "arguments", "right", 3.1),
            ("c", "arguments", "wrong", 9.0),
        ]
    ]
    assert torch_backend.slower_to_compile(results) == ["b"]
    text = torch_backend.summary(results)
    assert text.startswith("2 of 3 models are right. 1 of the 2 that Inductor compiled too")
    assert text.endswith("to compile: b.")


@pytest.mark.parametrize("name", ["compiled.txt", "compiled_more.txt"])
def test_a_file_names_models_of_three_packages(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(torch_backend.__file__).with_name("families") / name
    assert torch_backend.main(["--list", "--file", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 50
    assert {"timm", "torchvision", "transformers"} <= {line.split()[-1] for line in lines}


def test_pytorch_shares_the_process_of_the_first_compiler() -> None:
    (first, second) = requests_for(["a"], ["eager", "inductor", "arguments"], 1.0, 0)
    assert (first.contenders, second.contenders) == (("eager", "inductor"), ("arguments",))
    assert [each.contenders for each in requests_for(["a"], ["eager"], 1.0, 0)] == [("eager",)]


def test_a_run_continues_a_log() -> None:
    requests = requests_for(["a", "b"], ["eager", "arguments", "inductor"], 1.0, 0)
    former = [Result("a", "eager", "right"), Result("a", "arguments", "right"), Result("b", "eager", "right")]
    left = torch_backend.left_of(requests, former)
    assert [(r.name, r.contenders) for r in left] == [
        ("a", ("inductor",)),
        ("b", ("arguments",)),
        ("b", ("inductor",)),
    ]


def test_a_share_of_the_models() -> None:
    names = [f"model{i}" for i in range(10)]
    drawn = [requests_for(names, ["eager"], 0.3, seed) for seed in (1, 1, 2)]
    assert len(drawn[0]) == 3 and drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(ValueError, match="there is no contender xla"):
        requests_for(names, ["xla"], 1.0, 0)
    with pytest.raises(ValueError, match="a share is more than 0 and at most 1"):
        requests_for(names, ["eager"], 0.0, 0)


def test_the_tables(tmp_path: Path) -> None:
    lines = [
        '{"name": "a", "contender": "eager", "outcome": "right", "call_s": 0.001, "error": 1e-7}',
        '{"name": "a", "contender": "constants", "outcome": "failed"}',
        '{"name": "a", "contender": "constants", "outcome": "right", "graphs": 3, "left": 1, "first_s": 2.5,'
        ' "call_s": 0.0005, "error": 2e-7, "reason": "PyTorch runs | it"}',
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    results = logged(tmp_path / "log")
    assert [r.outcome for r in results] == ["right", "right"]
    text = report([*results, Result("b", "constants", "crashed", "exit code 7")])
    assert "| `a` | right | 3 | 1 | 2.5 s | 1.00 ms | 0.50 ms | 1e-07 | 2e-07 |" in text
    assert "| `a` | constants | right | PyTorch runs \\| it |" in text
    assert "| `b` | constants | crashed | exit code 7 |" in text


def test_the_exit_code_is_that_of_this_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    for contender, code in (("inductor", 0), ("constants", 1)):
        log.write_text(f'{{"name": "a", "contender": "{contender}", "outcome": "wrong"}}')
        assert torch_backend.main(["--markdown", str(log)]) == code
    assert torch_backend.main(["--list", "--only", "nn-lstm"]) == 0
    assert "nn-lstm" in capsys.readouterr().out
