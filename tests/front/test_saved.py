# SPDX-License-Identifier: Apache-2.0
"""Compiled models are saved and loaded: same calls, results, state and errors, by Python and by the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tvm_stitch
from tests.cli.helpers import run
from tests.front.test_sources import onnx_model
from tvm_stitch import cli
from tvm_stitch.deploy.folder import NotCompiled
from tvm_stitch.front.compiled import Compiled


class Counter(torch.nn.Module):
    """Counts its calls, changes an argument, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
        self.calls += 1
        pair[0].add_(1)
        return {"x": self.linear(x) + self.calls, "rest": (pair[0] * pair[1],)}


def arguments(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    return (torch.randn(2, 4, dtype=dtype),), {
        "pair": (torch.randn(2, dtype=dtype), torch.ones(2, dtype=dtype))
    }


def same(one: Compiled, other: Compiled, dtype: torch.dtype = torch.float32) -> None:
    """Check that two models describe themselves and answer in the same way."""
    assert (one.inputs, one.outputs, str(one.target)) == (other.inputs, other.outputs, str(other.target))
    for _ in range(2):
        args, named = arguments(dtype)
        pair = tuple(each.clone() for each in named["pair"])
        torch.testing.assert_close(one(*args, **named), other(*args, pair=pair))
        torch.testing.assert_close(named["pair"], pair)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    args, named = arguments()
    return torch.export.export(Counter(), args, named)


@pytest.fixture(scope="module")
def compiled(program: torch.export.ExportedProgram) -> Compiled:
    return tvm_stitch.compile(program, "llvm")


def test_a_loaded_model_is_called_like_the_saved_one(
    compiled: Compiled, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    args, named = arguments()
    compiled(*args, **named)  # the state is no longer that of the program
    compiled.save(tmp_path / "one")
    loaded = tvm_stitch.load(tmp_path / "one")
    same(loaded, compiled)
    assert capfd.readouterr().err == ""
    loaded.save(tmp_path / "two")
    shutil.rmtree(tmp_path / "one")
    same(tvm_stitch.load(str(tmp_path / "two")), loaded)
    with pytest.raises(
        ValueError, match=r"the input x: float32\[2, 4\] was given a tensor of shape \[4, 2\]"
    ):
        loaded(torch.ones(4, 2), **named)


def test_the_command_line_runs_what_was_saved(
    compiled: Compiled, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled.save(tmp_path)
    args, named = arguments()
    calls = int(tvm_stitch.load(tmp_path)._state["calls"].numpy()[0])
    wanted = compiled(*args, pair=tuple(each.clone() for each in named["pair"]))
    arrays = {"x": args[0], "pair_0": named["pair"][0], "pair_1": named["pair"][1]}
    np.savez(tmp_path / "in.npz", **{name: each.numpy() for name, each in arrays.items()})
    code, stdout, _ = run(capfd, "run", tmp_path, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "-q")
    assert code == 0 and "random" not in stdout
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["add"], wanted["x"].numpy(), rtol=1e-5)
        assert found["calls"].tolist() == [calls + 1]


def test_what_the_command_line_wrote_is_loaded(
    program: torch.export.ExportedProgram, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.export.save(program, tmp_path / "model.pt2")
    assert (
        cli.main(["compile", str(tmp_path / "model.pt2"), "--target", "llvm", "-q", "-o", str(tmp_path)]) == 0
    )
    same(tvm_stitch.load(tmp_path), tvm_stitch.compile(program, "llvm"))


def test_half_types_are_kept(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    compiled = tvm_stitch.compile(program, "llvm", dtype="bfloat16")
    compiled.save(tmp_path / "one")
    tvm_stitch.load(tmp_path / "one").save(tmp_path / "two")
    for folder in ("one", "two"):
        same(
            tvm_stitch.load(tmp_path / folder),
            tvm_stitch.compile(program, "llvm", dtype="bfloat16"),
            torch.bfloat16,
        )


def test_a_state_of_any_layout_is_kept(tmp_path: Path) -> None:
    class Moved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.arange(6.0).reshape(2, 3).T)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sums += x
            return self.sums * 1

    compiled = tvm_stitch.compile(Moved(), "llvm", example_inputs=torch.ones(3, 2))
    compiled.save(tmp_path)
    assert tvm_stitch.load(tmp_path)(torch.ones(3, 2)).tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_a_folder_that_is_written_again_is_loaded_anew(tmp_path: Path) -> None:
    """The loader knows libraries by the names of their files."""
    for size in (2, 3, 4):
        tvm_stitch.compile(torch.nn.ReLU(), "llvm", example_inputs=torch.ones(size)).save(tmp_path)
        loaded = tvm_stitch.load(tmp_path)
        assert loaded(torch.ones(size)).tolist() == [1.0] * size
        assert tvm_stitch.load(tmp_path)(torch.ones(size)).tolist() == [1.0] * size


def test_onnx_models_and_modules(tmp_path: Path) -> None:
    compiled = tvm_stitch.compile(onnx_model(), "llvm")
    compiled.save(tmp_path)
    x = np.random.default_rng().standard_normal((2, 3)).astype("float32")
    loaded = tvm_stitch.load(tmp_path)
    np.testing.assert_array_equal(loaded(x), np.maximum(x, 0))
    assert [str(spec) for spec in (*loaded.inputs, *loaded.outputs)] == [
        "x: float32[batch, 3]",
        "y: float32[batch, 3]",
    ]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["model"] == "ModelProto" and manifest["kernels"]["total"] == 1
    with pytest.raises(RuntimeError, match="a loaded model has no report"):
        _ = loaded.report


def test_folders_that_are_not_loaded(compiled: Compiled, tmp_path: Path) -> None:
    with pytest.raises(NotCompiled, match=r"no file .*nowhere; tvm-stitch compile MODEL"):
        tvm_stitch.load(tmp_path / "nowhere")
    compiled.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "state.npz").write_bytes(b"")
    with pytest.raises(NotCompiled, match="does not have the model's state"):
        tvm_stitch.load(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"cpu_flags": ["avx9000"]}))
    with pytest.raises(RuntimeError, match="it lacks avx9000"):
        tvm_stitch.load(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"call": {"takes": 3}}))
    with pytest.raises(NotCompiled, match="is not a manifest"):
        tvm_stitch.load(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(NotCompiled, match="has no manifest"):
        tvm_stitch.load(tmp_path / "model.so")
    (tmp_path / "model.so").chmod(0o777)
    with pytest.raises(NotCompiled, match="other users may write to"):
        tvm_stitch.load(tmp_path / "model.so")


def test_a_failing_save_leaves_the_former_files(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("tvm_stitch.front.saved.write_manifest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compiled.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
