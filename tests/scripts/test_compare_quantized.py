# SPDX-License-Identifier: Apache-2.0
"""Quantized networks are compared bit by bit, and a rounding that is not float64's is found and explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantized.differences import First, first_difference, in_float64, rounded, with_quantized
from quantized.networks import Inputs, Scheme, quantized_file
from quantized.runs import REFERENCE, by_onnxruntime, by_tvm, runs

from scripts import compare_quantized

RNG = np.random.default_rng(0)
SCHEMES = [
    Scheme("u8", per_channel=True),
    Scheme("s8", symmetric=True),
    Scheme("u8", "u8"),
    Scheme("s8", per_channel=True),
]


def network(tmp_path: Path, scheme: Scheme) -> tuple[onnx.ModelProto, Inputs]:
    """Build a convolution with ReLU and a residual, a softmax, and a product: all roundings of quantized networks."""
    weights = {
        "w": RNG.standard_normal((8, 8, 3, 3)) / 8, "b": RNG.standard_normal(8),
        "d": RNG.standard_normal((8, 1, 3, 3)) / 3, "m": RNG.standard_normal((8, 5)) / 3,
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "d"], ["e"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["e", "x"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["s"]),
        helper.make_node("MatMul", ["s", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, 9, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(v.astype("float32"), n) for n, v in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "network.onnx"
    onnx.save(model, path)
    draws = [{"x": RNG.standard_normal((2, 8, 9, 7)).astype("float32")} for _ in range(3)]
    return quantized_file(str(path), scheme, draws[:-1]), draws[-1]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_quantized_tensor_is_rounded_as_in_float64(tmp_path: Path, scheme: Scheme) -> None:
    model, inputs = network(tmp_path, scheme)
    for name, run in runs().items():
        if name.startswith("tvm_stitch"):
            found = rounded(model, inputs, run)
            assert found.elements > 1000 and found.otherwise == 0, (name, found)


def test_outputs_are_those_of_onnxruntime(tmp_path: Path) -> None:
    model, inputs = network(tmp_path, SCHEMES[0])
    outcomes = compare_quantized.compared(model, inputs)
    assert set(outcomes) == set(runs()) and outcomes[REFERENCE].differ == 0
    for name, outcome in outcomes.items():
        assert outcome.count == 10
        if name.startswith("tvm_stitch"):
            assert outcome.differ == 0 and outcome.first is None, (name, outcome)


def test_a_wrong_rounding_is_found(tmp_path: Path) -> None:
    model, inputs = network(tmp_path, SCHEMES[0])
    name = with_quantized(model)[1][-1]

    def wrong(tapped: onnx.ModelProto, given: Inputs) -> list[np.ndarray]:
        results = by_onnxruntime(tapped, given, False)
        at = [value.name for value in tapped.graph.output].index(name)
        results[at] = results[at].copy()
        results[at].flat[7] ^= 1
        return results

    def right(tapped: onnx.ModelProto, given: Inputs) -> list[np.ndarray]:
        return by_onnxruntime(tapped, given, False)

    first = first_difference(model, inputs, wrong, right)
    assert first is not None and (first.tensor, first.count) == (name, 1)
    assert round(first.exact) == first.reference == first.found + (1 if first.found < first.reference else -1)
    assert not first.is_tie and first.reason == "no tie, the reference is right"
    assert first_difference(model, inputs, right, right) is None
    found = rounded(model, inputs, wrong)
    assert found.otherwise == 1 and found.farthest > 0.001


def test_ties() -> None:
    first = First("x", 1, 7.500000168, 1e-6, 8, 7)
    assert first.is_tie and first.reason == "tie, the run is right"
    assert not First("x", 1, 7.501, 1e-6, 8, 7).is_tie
    assert not First("x", 1, 7.5, 1e-6, 9, 7).is_tie


def test_a_model_in_float64() -> None:
    from onnx.reference import ReferenceEvaluator

    x, scale, zero = RNG.integers(0, 256, (2, 3, 4)).astype("uint8"), RNG.random(3), RNG.integers(0, 256, 3)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", list("xsz"), ["y"], axis=1),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["y", "f"], ["p"]),
            helper.make_node("Add", ["p", "t"], ["o"]),
        ],
        "part",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(v, n)
            for n, v in {
                "x": x,
                "s": scale.astype("float32"),
                "z": zero.astype("uint8"),
                "t": np.float32([0.1]),
            }.items()
        ],
    )
    model = in_float64(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    found = ReferenceEvaluator(model).run(None, {"i": np.arange(4)})[0]
    real = (x.astype("float64") - zero[:, None]) * scale.astype("float32").astype("float64")[:, None]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, real * np.arange(4) + float(np.float32(0.1)), rtol=1e-15)


def test_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = network(tmp_path, SCHEMES[1])
    first = compare_quantized.NETWORKS[0]
    monkeypatch.setattr(compare_quantized, "NETWORKS", (first,))
    monkeypatch.setattr(compare_quantized, "quantized", lambda network: made)
    monkeypatch.setattr(
        compare_quantized,
        "runs",
        lambda: {REFERENCE: lambda m, x: by_onnxruntime(m, x, False), "tvm_stitch": _ours},
    )
    path = tmp_path / "table.md"
    assert compare_quantized.main(["--output", str(path)]) == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert capsys.readouterr().out.splitlines() == lines
    assert len(lines) == 4 and all(line.count("|") == len(compare_quantized.COLUMNS) + 1 for line in lines)
    assert lines[3].startswith(f"| {first.name} | {first.scheme} | tvm_stitch | 0 of 10 | 0 |")
    with pytest.raises(SystemExit):
        compare_quantized.main(["--networks", "none"])


def _ours(model: onnx.ModelProto, inputs: Inputs) -> list[np.ndarray]:
    return by_tvm(model, inputs, "llvm")
