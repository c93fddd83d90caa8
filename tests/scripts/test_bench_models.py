# SPDX-License-Identifier: Apache-2.0
"""Whole models next to other compilers: they are checked, timed in turns and reported. A failure costs a row."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import bench_models as bench  # noqa: E402
from models import (  # noqa: E402
    errors,
    job,
    kernel_times,
    measure,
    networks,
    plot,
    process,
    ready,
    registry,
    report,
    spec,
)


def onnx_file(path: Path) -> Path:
    """Build a softmax of a symbolic batch, behind a product."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["z"], axis=-1)],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


def test_models_are_measured_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, numbers = onnx_file(tmp_path / "tiny.onnx"), tmp_path / "numbers.json"
    arguments = ["--models", f"lstm,{file}", "--size", "small", "--batch", "3", "--seconds", "0.02"]
    arguments += ["--rounds", "2", "--threads", "1", "--contenders", "stitched,eager", "--json", str(numbers)]
    arguments += ["--draws", "2"]
    assert bench.main(arguments) == 0

    found = json.loads(numbers.read_text())
    assert found["settings"]["batch"] == 3 and "torch" in found["environment"]["versions"]
    lstm, tiny = found["models"]
    assert lstm["reference"]["what"] == "PyTorch in float64" and 0 < lstm["reference"]["pytorch_error"] < 1e-5
    assert set(lstm["contenders"]) == {"stitched", "eager"}
    for row in lstm["contenders"].values():
        assert 0 < row["best_s"] <= row["least_s"] <= row["median_s"] <= row["most_s"]
        assert len(row["blocks"]) == 2 and row["error"] < 1e-5 and row["compile_s"] > 0
        assert row["memory_bytes"] > 1e7
    mine = lstm["contenders"]["stitched"]
    assert mine["kernels"]["total"] == sum(v for k, v in mine["kernels"].items() if k != "total")
    assert mine["kernels"]["compute_intensive"] > 0 and mine["memory_intensive_s"] > 0

    assert tiny["contenders"]["stitched"]["error"] < 1e-5
    assert tiny["contenders"]["eager"] == {"failed": "an ONNX file is no PyTorch model"}
    assert found["summary"]["models"][0]["best_peer"] == "eager"
    assert found["summary"]["models"][1]["best_peer"] is None

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "lstm: small, batch 3, float32"
    assert lines[-4].split("  ")[0] == "model" and lines[-4].endswith("eager/ours")
    assert lines[-3].split()[0] == "lstm" and lines[-2].split()[0] == "tiny.onnx"
    assert lines[-1].startswith("geometric mean")


def test_whoever_fails_costs_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["good", "wrong", "raises", "absent", "crashes", "hangs", "stops_in_a_block"]
    monkeypatch.setattr(
        process, "CONTENDERS", {name: f"tests.scripts.contenders_of_models:{name}" for name in names}
    )
    monkeypatch.setattr(process, "REFERENCES", {False: "tests.scripts.contenders_of_models:reference"})
    asked = job.Job("none", "small", 1, "float32", "llvm", 3, str(tmp_path))
    effort = measure.Effort(0.01, 2, {"": 30, "hangs": 1.5})
    told: list[str] = []
    rows = measure.measure(asked, names, effort, told.append)["contenders"]
    assert rows["good"]["median_s"] > 0 and rows["good"]["error"] == pytest.approx(5e-6, rel=0.1)
    assert rows["good"]["threads"] == "3"
    failed = {name: row["failed"] for name, row in rows.items() if "failed" in row}
    assert failed.pop("crashes").startswith("its process ended with code -6; Fatal Python error: Aborted")
    assert failed == {
        "wrong": "wrong: relative error 2.5e-02",
        "raises": "ValueError: no such operator",
        "absent": "not installed: nothing",
        "hangs": "no answer in 2 s",
        "stops_in_a_block": "RuntimeError: out of memory",
    }
    assert told[:2] == ["none, small", "  reference: the truth"] and len(told) == 2 + len(names)


def test_processes_that_are_ended_leave_no_word(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(Path(process.__file__).parents[1]), str(Path(__file__).parents[2])]}
from models import measure, process
from models.job import Job
process.CONTENDERS = {{"holds_a_lock": "tests.scripts.contenders_of_models:holds_a_lock"}}
process.REFERENCES = {{False: "tests.scripts.contenders_of_models:reference"}}
job = Job("none", "small", 1, "float32", "llvm", 1, {str(tmp_path)!r})
found = measure.measure(job, ["holds_a_lock"], measure.Effort(0.01, 1, {{"": 30}}), print)
assert found["contenders"]["holds_a_lock"]["median_s"] > 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("at_once", [1, 4])
def test_several_models_are_prepared_before_one_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(
        process,
        "CONTENDERS",
        {name: f"tests.scripts.contenders_of_models:{name}" for name in ("good", "raises")},
    )
    monkeypatch.setattr(process, "REFERENCES", {False: "tests.scripts.contenders_of_models:reference"})
    jobs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        jobs.append(job.Job(name, "small", 1, "float32", "llvm", 1, str(tmp_path / name)))
    told: list[str] = []
    asked = measure.measure_all(
        jobs, ["good", "raises"], measure.Effort(0.01, 2, {"": 30}, at_once), told.append
    )
    first = next(asked)
    assert sum("ready" in line for line in told) == 2  # the second one's contenders, too
    second = next(asked)
    assert [first["model"], second["model"]] == ["first", "second"]
    for found in (first, second):
        assert len(found["contenders"]["good"]["blocks"]) == 2
        assert found["contenders"]["raises"] == {"failed": "ValueError: no such operator"}
    assert not list(asked)


@pytest.mark.parametrize(
    ("name", "memory_intensive"),
    [
        ("triton_poi_fused_add_convolution_relu_4", True),
        ("triton_tem_fused_mm_2", False),
        ("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", False),
        ("nvjet_hsh_128x192_64x5_2x1_v_bz_TNT", False),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>", True),
        ("void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 8, false>", True),
        ("Memcpy DtoD (Device -> Device)", True),
    ],
)
def test_kernels_of_others_are_told_apart_by_name(name: str, memory_intensive: bool) -> None:
    assert kernel_times.is_memory_intensive(name) == memory_intensive


def test_the_file_itself_is_light() -> None:
    """Each contender's process imports it anew: PyTorch's would hold TVM, and TVM's PyTorch."""
    code = (
        "import sys, bench_models; print(sorted({'tvm', 'torch', 'onnx', 'transformers'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=bench.__file__.rpartition("/")[0], capture_output=True, text=True
    )
    assert found.stdout == "[]\n", found.stderr


def _model(name: str, seconds: dict[str, float], **failed: str) -> dict[str, Any]:
    rows: dict[str, Any] = {key: {"median_s": value} for key, value in seconds.items()}
    rows |= {key: {"failed": why, "median_s": 1e-9} for key, why in failed.items()}
    shared = {"size": "full", "batch": 1, "dtype": "float32", "reference": {"failed": "no"}}
    return {"model": name, "contenders": rows, **shared}


def test_ratios_means_and_best_peers() -> None:
    names = ["stitched", "stock", "eager", "inductor"]
    models = [
        _model("a", {"stitched": 2e-3, "stock": 8e-3, "eager": 6e-3, "inductor": 4e-3}),
        _model("b", {"stitched": 1e-3, "eager": 8e-3}, inductor="wrong: relative error 1"),
        _model("c", {"eager": 1e-3}, stitched="no"),
    ]
    found = report.summary(models, names)
    assert [row["best_peer"] for row in found["models"]] == ["inductor", "eager", "eager"]
    assert [row["best_peer_ratio"] for row in found["models"]] == [2.0, 8.0, None]
    assert found["geometric_mean"] == {
        "best_peer": 4.0,
        "stock": 4.0,
        "eager": pytest.approx(24**0.5),
        "inductor": 2,
    }
    lines = [line.split() for line in report.overview(models, names).splitlines()]
    assert lines[1] == ["a", "2", "inductor", "2.00", "4.00", "3.00", "2.00"]
    assert lines[2] == ["b", "1", "eager", "8.00", "-", "8.00", "-"]
    assert lines[3] == ["c", "-", "eager", "-", "-", "-", "-"]
    assert lines[4] == ["geometric", "mean", "4.00", "4.00", "4.90", "2.00"]
    marked = report.overview(models, names, markdown=True).splitlines()
    assert marked[1] == "|---|---:|---:|---:|---:|---:|---:|" and marked[2].startswith("| a | 2 | inductor |")
    assert "inductor left out: wrong: relative error 1" in report.detail(models[1])
    assert "best mode" not in report.detail(models[1])
    models[0]["contenders"]["stitched"]["unstitched"] = "too hard"
    assert "stitched left whole to TVM: too hard" in report.detail(models[0])


def test_the_best_mode_of_inductor_is_named() -> None:
    names = ["stitched", "eager", "inductor", "inductor-tuned"]
    model = _model("a", {"stitched": 2e-3, "eager": 1e-3, "inductor": 4e-3, "inductor-tuned": 3e-3})
    (row,) = report.summary([model], names)["models"]
    assert (row["best_inductor"], row["best_inductor_ratio"]) == ("inductor-tuned", 1.5)
    told = "Inductor's best mode: inductor-tuned, 1.50 times the stitched build's time"
    assert told in report.detail(model).splitlines()


def test_tuning_is_a_contender_on_gpus() -> None:
    parser = bench._parser()
    for arguments, there in ((["--target", "cuda"], True), (["--target", "llvm"], False)):
        assert ("inductor-tuned" in bench._contenders(parser.parse_args(arguments), parser)) == there


def test_models_of_packages_have_their_names() -> None:
    for name in ("timm", "timm:", "unknown:x", "lstm:x"):
        assert registry.find(name) is None
    for package in ("timm", "torchvision", "transformers"):
        found = registry.find(f"{package}:x")
        assert found is not None and found.packages == (package,)
    assert registry.find("lstm") is registry.MODELS["lstm"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("timm:test_convnext", (2, 1000)),
        ("torchvision:squeezenet1_1", (2, 1000)),
        ("transformers:mobilevit", (2, 640, 8, 8)),
    ],
)
def test_a_package_builds_its_model(name: str, shape: tuple[int, ...]) -> None:
    import torch

    model = registry.find(name)
    assert model is not None
    if importlib.util.find_spec(model.packages[0]) is None:
        pytest.skip(f"needs {model.packages[0]}")
    made = spec.make(model, "full", 2, "float32")
    with torch.no_grad():
        assert made.module(*made.inputs).shape == shape


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models = [_model("a", {"stitched": 2e-3, "eager": 6e-3}), _model("b", {"eager": 1e-3}, stitched="no")]
    plot.save(models, ["stitched", "eager"], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("<svg") == 1


def test_blocks_of_calls() -> None:
    calls = []
    counting = ready.Ready(lambda: calls.append(1), list)
    block = ready.run_block(counting, 0.01, 1e-4)
    assert block.calls >= 3 and block.best <= block.median and len(calls) == block.calls + 20
    calls.clear()
    slow = ready.Ready(lambda: (calls.append(1), time.sleep(0.02)), list)
    assert ready.run_block(slow, 0.01, 0.02).calls == len(calls) == 1
    waited = []
    on_gpu = ready.Ready(lambda: None, list, lambda: waited.append(1), on_gpu=True)
    block = ready.run_block(on_gpu, 0.0, 0.0)
    assert block.calls > ready.MOST_CALLS and len(waited) == 2  # one group of calls, waited for as a whole


@pytest.mark.parametrize(
    ("got", "error"),
    [
        ([[1.0, 2.0], [0.5]], 0.0),
        ([[1.0, 2.5], [0.6]], 0.25),
        ([[1.0, np.nan], [0.5]], np.inf),
        ([[1.0], [0.5]], np.inf),
        ([[1.0, 2.0]], np.inf),
    ],
)
def test_errors_are_relative_to_the_greatest_value(got: list[list[float]], error: float) -> None:
    exact = [np.array([1.0, -2.0]) * [1, -1], np.array([0.5])]
    assert errors.relative_error([np.array(x, np.float32) for x in got], exact) == pytest.approx(
        error, rel=1e-6
    )


def test_errors_are_the_mean_over_draws_of_the_inputs() -> None:
    inputs = [np.arange(24.0).reshape(2, 12), np.ones((2, 3), np.int64)]
    first, *others = errors.draws(inputs, 3)
    assert all(np.array_equal(x, y) for x, y in zip(first, inputs)) and len(others) == 2
    for again in others:
        assert not np.array_equal(again[0], inputs[0]) and np.array_equal(again[1], inputs[1])
        assert np.array_equal(np.sort(again[0].reshape(-1)), inputs[0].reshape(-1))
    assert all(np.array_equal(x, y) for x, y in zip(others[0], errors.draws(inputs, 2)[1]))

    exact = [[np.array([2.0])], [np.array([4.0])]]
    assert errors.mean_error([[np.array([2.2])], [np.array([4.0])]], exact) == pytest.approx(0.1 / 2**0.5)
    assert errors.mean_error([[np.array([np.nan])], [np.array([4.0])]], exact) == np.inf
    assert errors.mean_error(exact[:1], exact) == np.inf


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    absent = ("timm", "transformers", "matplotlib")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in absent else there(name, *rest)
    )
    assert bench.main(["--models", "bert,lstm,resnet18"]) == 2
    told = capsys.readouterr().err
    assert told == "error: not installed, and needed for bert, resnet18: pip install transformers timm\n"
    assert bench.main(["--models", "lstm", "--plot", "x.png"]) == 2
    assert capsys.readouterr().err.endswith("pip install matplotlib\n")


def test_usage_errors_and_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(onnx_file(tmp_path / "tiny.onnx"))
    for arguments, message in (
        (["--models", "nothing"], "choose from"),
        (["--models", "absent.onnx"], "no file"),
        (["--models", "lstm", "--contenders", "nobody"], "choose from"),
        (["--models", file, "--dtype", "float16"], "leave --dtype out"),
        (["--models", "lstm", "--rounds", "0"], "at least 1"),
        (["--models", "lstm", "--config", "no_such=1"], "no_such"),
        (["--models", file, "--shape", "x"], "--shape takes"),
    ):
        with pytest.raises(SystemExit) as stop:
            bench.main(arguments)
        assert stop.value.code == 2 and message in capsys.readouterr().err
    assert bench.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(registry.MODELS)


def test_own_networks_are_what_pytorch_computes() -> None:
    import torch

    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)
    for kind, theirs in (("Lstm", torch.nn.LSTM(3, 4)), ("Gru", torch.nn.GRU(3, 4))):
        mine = getattr(networks, kind)(3, 4)
        mine.of_input.load_state_dict({"weight": theirs.weight_ih_l0, "bias": theirs.bias_ih_l0})
        mine.of_state.load_state_dict({"weight": theirs.weight_hh_l0, "bias": theirs.bias_hh_l0})
        torch.testing.assert_close(mine(x), theirs(x)[0])
        back = getattr(networks, kind)(3, 4, backwards=True)
        back.load_state_dict(mine.state_dict())
        torch.testing.assert_close(back(x), theirs(x.flip(0))[0].flip(0))
