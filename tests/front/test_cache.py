# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs on disk: found again by all that their code depends on, bounded, and never trusted if damaged."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tvm_stitch
from tvm_stitch.config import StitchConfig
from tvm_stitch.front import cache, dynamo
from tvm_stitch.target import resolve_target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test."""
    monkeypatch.setenv("TVM_STITCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(cache.LIMIT)
    torch._dynamo.reset()
    yield tmp_path / "cache" / "graphs"
    torch._dynamo.reset()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the targets of compilations."""
    found: list[Any] = []
    build = dynamo.build

    def noted(mod: Any, target: Any, config: Any) -> Any:
        found.append(target)
        return build(mod, target, config)

    monkeypatch.setattr(dynamo, "build", noted)
    return found


class Model(torch.nn.Module):
    """Has weights, a buffer that it changes, and a constant."""

    def __init__(self, shift: float = 1.0):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.softmax(self.linear(x) + self.shift, -1) * self.calls


@torch.no_grad()
def used(model: Model, **options: Any) -> None:
    """Compile a model as a new process would, and compare it with PyTorch."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=tvm_stitch.torch_backend, options={"target": "llvm", **options})
    x = torch.randn(2, 4)
    before = model.calls.clone()
    found = compiled(x)
    assert model.calls == before + 1
    model.calls.copy_(before)
    torch.testing.assert_close(found, model(x))


@pytest.mark.parametrize("constants", [False, True])
def test_a_graph_is_compiled_once(builds: list[Any], folder: Path, constants: bool) -> None:
    model = Model()
    for _ in range(3):
        used(model, constants=constants)
    assert len(builds) == 1 and len(list(folder.iterdir())) == 1


def test_all_that_the_code_depends_on_is_another_entry(builds: list[Any], folder: Path) -> None:
    model = Model()
    used(model)
    used(Model())  # other weights, which are arguments
    assert len(builds) == 1
    used(model, constants=True)
    used(model, constants=True)
    model.linear.weight.data.mul_(2)  # weights that are constants
    used(model, constants=True)
    assert len(builds) == 3
    used(Model(2.0))
    used(model, horizontal_fusion=False)
    used(model, target="llvm -mcpu=x86-64-v2")
    assert len(builds) == 6 and len(list(folder.iterdir())) == 6


def test_names_of_entries_are_those_of_other_processes() -> None:
    code = (
        "import torch\n"
        "from tvm_stitch.front.cache import key_of\n"
        "from tvm_stitch.config import StitchConfig\n"
        "from tvm_stitch.target import resolve_target\n"
        "torch.manual_seed(0)\n"
        "module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU())\n"
        "program = torch.export.export(module, (torch.randn(2, 4),))\n"
        "print(key_of(program, resolve_target('native'), StitchConfig()))\n"
    )
    names = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    ]
    assert names[0] == names[1] and len(names[0]) == 48


@pytest.mark.parametrize("how", ["cut off", "changed", "empty", "no manifest"])
def test_a_damaged_entry_is_compiled_again(
    how: str, builds: list[Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    used(model)
    (entry,) = folder.iterdir()
    library = entry / "model.so"
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.unlink()
    library.write_bytes(data if how == "changed" else data[:9000] if how == "cut off" else b"")
    if how == "no manifest":
        (entry / "manifest.json").unlink()
    with caplog.at_level(logging.WARNING):
        used(model)
    assert len(builds) == 2 and "is compiled again" in caplog.text
    used(model)
    assert len(builds) == 2


def test_the_entries_used_least_recently_go_first(
    builds: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [Model(shift) for shift in (0.0, 1.0, 2.0)]
    used(models[0])
    (first,) = folder.iterdir()
    size = sum(path.stat().st_size for path in first.iterdir())
    used(models[1])
    for age, entry in enumerate(sorted(folder.iterdir(), key=lambda p: p == first)):
        os.utime(entry, (1e9 - age, 1e9 - age))  # the first one is the older one
    used(models[0])  # until it is used again
    abandoned = folder / ".new-abandoned"
    abandoned.mkdir()
    os.utime(abandoned, (1e9, 1e9))
    monkeypatch.setenv(cache.LIMIT, f"{int(2.5 * size)}")
    used(models[2])
    assert first.is_dir() and len(list(folder.iterdir())) == 2 and len(builds) == 3
    used(models[0])
    assert len(builds) == 3
    used(models[1])
    assert len(builds) == 4


def test_the_cache_is_turned_off(
    builds: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used(Model(), cache=False)
    for text in ("0", "many"):
        monkeypatch.setenv(cache.LIMIT, text)
        used(Model())
    assert len(builds) == 3 and not folder.exists()
    assert "not kept: TVM_STITCH_GRAPH_CACHE=many is no number of bytes" in caplog.text


def test_constants_that_do_not_fit_are_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(cache.LIMIT, "50")  # bytes: the weight has 48, and the bias 12
    monkeypatch.setattr(cache, "write", lambda *_: 1 / 0)
    used(Model(), constants=True)
    assert list(folder.iterdir()) == [] and "is not kept" not in caplog.text
    used(Model())
    assert "a compiled graph is not kept: " in caplog.text  # weights are arguments


def test_a_folder_that_others_write_is_not_used(
    folder: Path, builds: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    used(Model())
    assert len(builds) == 1 and list(folder.iterdir()) == []
    assert "compiled graphs are not kept: " in caplog.text


def test_a_graph_that_cannot_be_written_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write", full)
    used(Model())
    assert list(folder.iterdir()) == [] and "a compiled graph is not kept: " in caplog.text


def test_a_constant_without_bytes_has_no_entry() -> None:
    class Table(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    program = torch.export.export(Table(), (torch.randn(2),))
    assert cache.key_of(program, resolve_target("llvm"), StitchConfig()) is not None
    program.constants["table"] = object()
    assert cache.key_of(program, resolve_target("llvm"), StitchConfig()) is None
