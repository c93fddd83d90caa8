# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.export on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.helpers import run
from tvm_stitch import cli

torch = pytest.importorskip("torch")

from tvm_stitch.cli.readers import torch as torch_model  # noqa: E402


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear layer and a softmax of (rows, 16), its input in a list, and sums."""

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(16, 8)

        def forward(self, x: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.softmax(self.inner(x[0]), -1), x[0].sum(0)

    torch.manual_seed(1)
    shapes = {"x": [{0: torch.export.Dim("rows")}]}
    exported = torch.export.export(Head().eval(), ([torch.randn(4, 16)],), dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp("programs") / "head.pt2"
    torch.export.save(exported, path)
    return path


def test_compile_and_run(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, stdout, stderr = run(capfd, "compile", program, "-o", out)
    assert code == 0 and "memory-intensive" in stdout and "Warning" not in stderr
    manifest = json.loads((out / "manifest.json").read_text())
    (taken,) = manifest["inputs"]
    assert taken["name"] == "x_0" and taken["shape"][1] == 16 and isinstance(taken["shape"][0], str)
    x = np.random.default_rng(0).standard_normal((6, 16)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    results = tmp_path / "results.npz"
    code, stdout, _ = run(capfd, "run", out, "-i", tmp_path / "x.npy", "-o", results, "--repeats", 1)
    assert code == 0
    expected = torch.export.load(program).module()([torch.from_numpy(x)])
    with np.load(results) as arrays:
        assert list(arrays) == [spec["name"] for spec in manifest["outputs"]]
        for array, wanted in zip(arrays.values(), expected, strict=True):
            np.testing.assert_allclose(array, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_shapes_fix_symbols(program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("compile", program, "-q", "-o", tmp_path / "out", "--json", "--shape")
    code, stdout, _ = run(capfd, *arguments, "x_0=6,16")
    manifest = json.loads(stdout)
    assert code == 0 and manifest["inputs"][0]["shape"] == [6, 16]
    assert [spec["shape"] for spec in manifest["outputs"]] == [[6, 8], [16]]
    code, _, stderr = run(capfd, *arguments, "x_0=6,17")
    assert code == 2 and "shape [6, 17] does not fit the input x_0: float32[" in stderr
    code, _, stderr = run(capfd, *arguments, "y=6,16")
    assert code == 2 and "no input 'y'; its inputs are x_0: float32[" in stderr


def test_explain_names_modules(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, stdout, _ = run(capfd, "explain", program, "-q", "--why", "inner/addmm", "_softmax")
    assert code == 0 and stdout.startswith("inner/addmm and _softmax are in one kernel: ")


def test_bench_compares_with_pytorch(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The test has bfloat16. Other tests have float32, and float16."""
    arguments = ("--shape", "x_0=6,16", "--repeats", 2, "--json", "--precision", "bfloat16")
    code, stdout, _ = run(capfd, "bench", program, *arguments)
    data = json.loads(stdout)
    assert code == 0 and data["peer"]["name"] == "PyTorch"
    assert data["stitched"]["max_abs_error"] < 0.1


def test_torch_is_missing(
    program: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, stdout, stderr = run(capfd, "explain", program, "-q")
    assert code == 1 and stdout == ""
    assert "head.pt2 needs PyTorch: pip install torch" in stderr.splitlines()[0]


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_what_is_no_program(content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "model.pt2").write_bytes(content)
    assert cli.main(["explain", str(path), "-q"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "model.pt2 is not a program of torch.export" in line and "torch.export.save(" in line


def test_arguments_and_results_that_are_no_tensors(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float, mask: None, y: torch.Tensor) -> Any:
            return x * scale, None, 3, x + y

    path = tmp_path / "scaled.pt2"
    torch.export.save(torch.export.export(Scaled(), (torch.ones(3), 2.0, None, torch.ones(1))), path)
    read = torch_model.read_torch(path, {}, names=False)
    call = read.peer({"x": np.full(3, 5, "float32"), "y": np.ones(1, "float32")})
    assert [result.tolist() for result in call()] == [[10.0] * 3, [6.0] * 3]


def test_words_among_results(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Worded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, "word"

    path = tmp_path / "worded.pt2"
    torch.export.save(torch.export.export(Worded(), (torch.ones(3),)), path)
    code, _, stderr = run(capfd, "explain", path, "-q")
    assert code == 2 and "PyTorch reads no program with the output as_string=word; export a" in stderr


def test_weights_are_no_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "weights.pt")
    code, _, stderr = run(capfd, "explain", tmp_path / "weights.pt", "-q")
    assert code == 2 and len(stderr.splitlines()) == 1 and "is not a program of torch.export" in stderr


def test_results_of_a_type_that_is_not_registered_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As models of the transformers package return them, where that package is not imported."""
    (tmp_path / "results.py").write_text(
        "import torch\n"
        "class Result(dict): pass\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x): return Result(y=x + 1)\n"
        "def unflatten(values, keys): return Result(zip(keys, values))\n"
        "torch.utils._pytree.register_pytree_node(\n"
        "    Result, lambda r: (list(r.values()), list(r)), unflatten, serialized_type_name='results.Result')\n"
        "torch.export.save(torch.export.export(Model(), (torch.ones(3),)), 'model.pt2')\n"
    )
    subprocess.run([sys.executable, "results.py"], cwd=tmp_path, check=True, capture_output=True)
    code, _, stderr = run(capfd, "explain", tmp_path / "model.pt2", "-q")
    assert code == 2 and len(stderr.splitlines()) == 1
    assert "the module takes or returns a results.Result" in stderr and "returns them" in stderr


def test_an_operator_that_the_importer_does_not_know(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Gradient(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at, zero = torch.tensor([0, 1]), torch.tensor([0, 0])
            return torch.ops.aten._embedding_bag_per_sample_weights_backward(x, x, at, zero[:1], zero, 0)

    torch.export.save(torch.export.export(Gradient(), (torch.ones(2, 2),)), tmp_path / "gradient.pt2")
    code, stdout, stderr = run(capfd, "explain", tmp_path / "gradient.pt2", "-q")
    assert code == 1 and stdout == ""
    (line,) = stderr.splitlines()
    name = "_embedding_bag_per_sample_weights_backward"
    assert f"gradient.pt2 is not imported: {name}.default ({name}): there is no converter" in line
    assert "--debug" not in line and "onnx" not in line


def test_a_program_that_changes_a_buffer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    torch.export.save(torch.export.export(Counter(), (torch.ones(3),)), tmp_path / "counter.pt2")
    model = torch_model.read_torch(tmp_path / "counter.pt2", {}, False)
    assert [spec.name for spec in model.outputs] == ["mul", "count"]
    peer = model.peer({"x": np.float32([1, 2, 3])})
    for _ in range(2):  # each call begins with the exported values
        result, count = peer()
        assert result.tolist() == [1, 2, 3] and count.tolist() == [1, 1, 1]


def test_what_else_the_importer_fails_at(
    program: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise ValueError("it is Tuesday")

    monkeypatch.setattr(torch_model, "from_exported_program", refuse)
    code, _, stderr = run(capfd, "compile", program, "-q")
    (line,) = stderr.splitlines()
    assert code == 1 and line.endswith(
        "head.pt2 is not imported: TVM's PyTorch importer fails with: it is Tuesday"
    )
