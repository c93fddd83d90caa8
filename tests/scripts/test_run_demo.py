# SPDX-License-Identifier: Apache-2.0
"""The demonstration: what it prints fits on a screen and is quiet, and its parts do what they say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.execution.timing import Times
from tvm_stitch.importers.onnx.compare import onnxruntime_call
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import run_demo
from demo.part import launches, part_of

SMALL = BertConfig(layers=2, hidden=32, heads=2, sequence=16, ffn=64, vocabulary=64)


def demonstrate(*arguments: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["run_demo.py", "--repeats", "2", *arguments])
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    return run_demo.main()


@pytest.mark.parametrize("given", [False, True], ids=["built", "MODEL"])
def test_one_screen_shows_all(
    given: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_demo, "BertConfig", lambda: SMALL)
    onnx.save(build_bert(SMALL), str(tmp_path / "model.onnx"))
    arguments = ("--model", "model.onnx") if given else ()
    assert demonstrate(*arguments, monkeypatch=monkeypatch, folder=tmp_path) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines() + err.splitlines()) <= 45 and max(map(len, out.splitlines())) <= 110
    assert not re.search(r"Warning|BlockBuilder|OpNotImplemented|Traceback|\x1b", out + err)
    rows = [line.split("  ")[1] for line in out.splitlines() if re.search(r" ms .* ms", line)]
    peers = ["stock TVM", "stitched", "ONNX Runtime", *([] if given else ["PyTorch"])]
    assert rows[: len(peers)] == peers
    assert re.search(r"\n  TVM: \d+ kernels, .* moved +stitched: 1 kernel, .* moved\n", out)
    page = tmp_path / "build" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "build/report.html" in out and text.startswith("<!doctype html>")
    data = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.S)[1])
    assert all(k["measured"] for k in data["kernels"] + data["stock_kernels"]), "every kernel was timed"
    if not tvm.cuda(0).exist:
        assert "One call on a GPU (sm_90; planned, not run)" in out and "no CUDA device" in out


def test_a_machine_with_a_gpu_has_its_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With this machine's CPU in the place of a GPU."""
    kind = tvm.cuda().dlpack_device_type
    device = SimpleNamespace(exist=True, device_name="Some GPU", dlpack_device_type=kind)
    monkeypatch.setattr(run_demo.tvm, "cuda", lambda _=0: device)
    native = run_demo.resolve_target("native")
    monkeypatch.setattr(run_demo, "resolve_target", lambda _: native)
    monkeypatch.setattr(run_demo, "BertConfig", lambda: SMALL)
    assert demonstrate(monkeypatch=monkeypatch, folder=tmp_path) == 0
    out = capfd.readouterr().out
    rows = out[out.index("One call on this GPU") :].splitlines()[1:3]
    assert [row.split("  ")[1] for row in rows] == ["stock TVM", "stitched"] and all(
        " ms " in row for row in rows
    )
    assert "Some GPU" in out.splitlines()[0] and "planned, not run" not in out


def test_a_wrong_result_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_demo, "BertConfig", lambda: SMALL)
    monkeypatch.setattr(run_demo.compare, "greatest_error", lambda *_: 1.0)
    assert demonstrate(monkeypatch=monkeypatch, folder=tmp_path) == 1
    assert "against ONNX Runtime is more than 1e-04" in capfd.readouterr().err


def test_what_is_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert demonstrate("--model", "no.onnx", monkeypatch=monkeypatch, folder=tmp_path) == 2
    assert "error: no file no.onnx; give the path of an ONNX model" in capfd.readouterr().err


def test_symbolic_dimensions_need_shapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    info = onnx.helper.make_tensor_value_info
    shapes = [info(name, onnx.TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Softmax", ["x"], ["y"])], "g", shapes[:1], shapes[1:]
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "n.onnx"))
    arguments = ("--model", "n.onnx")
    assert demonstrate(*arguments, monkeypatch=monkeypatch, folder=tmp_path) == 2
    assert capfd.readouterr().err.splitlines()[-1].endswith("make run MODEL=n.onnx SHAPE=input=1,128")
    assert demonstrate(*arguments, "--shape", "x=4,8", monkeypatch=monkeypatch, folder=tmp_path) == 0


def test_noise_is_named() -> None:
    assert run_demo._spread(Times((0.001, 0.002, 0.003))) == "2.00 ms (1.50 to 2.50)"


def test_pytorch_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    from demo.torch_bert import TorchBert

    proto, inputs = build_bert(SMALL), random_inputs(SMALL)
    with torch.inference_mode():
        result = TorchBert(proto, SMALL).eval()(*map(torch.from_numpy, inputs.values())).numpy()
    np.testing.assert_allclose(result, onnxruntime_call(proto, inputs)()[0], rtol=1e-4, atol=1e-4)


def test_a_part_is_a_model_of_its_own() -> None:
    def body(emit: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
        top = emit(R.exp(x), "e")
        middle = emit(R.add(top, relax.const(np.float32(1))), "a")
        return [emit(R.multiply(middle, top), "m"), emit(R.sqrt(middle), "s")]

    part = part_of(build(body, ((2, 3), "float32")), {"a", "m"})
    relax.analysis.well_formed(part)
    assert [str(p.name) for p in part["main"].params] == ["e"], "what it reads of the rest"
    assert len(part["main"].ret_ty.fields) == 2, "the rest reads one, the other is returned"
    names = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR")
    passes = tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])
    found = launches(part, passes, tvm.target.Target("llvm"))
    assert [(k.name, k.read, k.written) for k in found] == [("add", 24, 24), ("multiply", 48, 24)]
