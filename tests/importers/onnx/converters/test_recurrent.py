# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN of ONNX against ONNX Runtime, and against float64 in the forms that it does not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import helper, numpy_helper

import tvm_stitch
from tests.relax.loops.modules import run
from tvm_stitch.importers.onnx.importer import UnsupportedModel
from tvm_stitch.importers.onnx.load import from_onnx

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FEATURES, HIDDEN = 5, 12
RESULTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}


def weights_of(kind: str, directions: int, names: str, dtype: str = "float32") -> dict[str, Any]:
    """Return weights by the names of ONNX's inputs, of those in ``names``."""
    generator, rows = np.random.default_rng(1), GATES[kind] * HIDDEN
    shapes = {"W": (rows, FEATURES), "R": (rows, HIDDEN), "B": (2 * rows,), "P": (3 * HIDDEN,)}
    return {
        name: (generator.standard_normal((directions, *shapes[name])) * 0.3).astype(dtype) for name in names
    }


def inputs_of(directions: int, names: str, steps: int, batch: int, batch_first: bool) -> dict[str, Any]:
    """Return X and of sequence_lens (l), initial_h (h) and initial_c (c) those in ``names``."""
    generator = np.random.default_rng(steps)
    states = (batch, directions, HIDDEN) if batch_first else (directions, batch, HIDDEN)
    shape = (batch, steps, FEATURES) if batch_first else (steps, batch, FEATURES)
    made: dict[str, Any] = {"X": generator.standard_normal(shape).astype("float32")}
    if "l" in names:
        made["sequence_lens"] = generator.integers(1, steps + 1, batch).astype("int32")
    for name in names:
        if name in "hc":
            made[f"initial_{name}"] = generator.standard_normal(states).astype("float32")
    return made


def model_of(
    kind: str,
    given: Mapping[str, Any],
    weights: Mapping[str, Any],
    as_inputs: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node, whose inputs but for the weights have symbolic steps and rows."""
    order = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    names = [name if name in given or name in weights else "" for name in order]
    while not names[-1]:
        names.pop()
    batch_first = attributes.get("layout", 0)
    symbols = {
        "X": {0: "steps", 1: "batch"} if not batch_first else {0: "batch", 1: "steps"},
        "sequence_lens": {0: "batch"},
    }
    inputs = []
    for name, value in (given | weights if as_inputs else given).items():
        dims: list[Any] = list(value.shape)
        states = {0 if batch_first else 1: "batch"} if name.startswith("initial") else {}
        for axis, symbol in symbols.get(name, states).items():
            dims[axis] = symbol
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), dims))
    filled = [] if as_inputs else [numpy_helper.from_array(value, name) for name, value in weights.items()]
    node = helper.make_node(kind, names, RESULTS[kind], hidden_size=HIDDEN, **attributes)
    dtype = helper.np_dtype_to_tensor_dtype(given["X"].dtype)
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in RESULTS[kind]]
    graph = helper.make_graph([node], "layer", inputs, outputs, filled)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def given_to(mod: tvm.IRModule, values: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of an imported model."""
    return [tvm.runtime.tensor(np.asarray(values[p.name], order="C")) for p in mod["main"].params]


CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("LSTM", "WR", "", {}),
    ("LSTM", "WRBP", "lhc", {"direction": "bidirectional", "clip": 0.6}),
    ("LSTM", "WRB", "lc", {"direction": "reverse", "activations": ["HardSigmoid", "ScaledTanh", "Softsign"],
                           "activation_alpha": [0.3, 0.8], "activation_beta": [0.4, 0.9]}),
    ("GRU", "WRB", "lh", {"direction": "bidirectional"}),
    ("GRU", "WRB", "h", {"linear_before_reset": 1, "direction": "reverse", "clip": 0.5}),
    ("GRU", "WR", "l", {"linear_before_reset": 1}),
    ("RNN", "WRB", "lh", {"direction": "bidirectional", "activations": ["Tanh", "Softsign"]}),
    ("RNN", "WRB", "", {"activations": ["LeakyRelu"], "activation_alpha": [0.2], "clip": 2.0}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "weights", "names", "attributes"), CASES)
def test_against_onnx_runtime(kind: str, weights: str, names: str, attributes: dict[str, Any]) -> None:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    own = weights_of(kind, directions, weights)
    model = model_of(kind, inputs_of(directions, names, 3, 2, False), own, **attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mod = from_onnx(model)
    executable = tvm_stitch.compile(mod)
    for steps, batch in ((1, 3), (9, 1), (40, 5)):
        values = inputs_of(directions, names, steps, batch, False)
        wanted = session.run(None, values)
        for a, b in zip(run(executable, given_to(mod, values)), wanted, strict=True):
            assert a.shape == b.shape
            assert np.allclose(a.numpy(), b, rtol=0, atol=5e-6 * max(1, np.abs(b).max()))


def test_batch_first() -> None:
    """ONNX Runtime has no layout 1. The results are those of layout 0 with the axes exchanged."""
    weights = weights_of("LSTM", 2, "WRB")
    results = {}
    for layout in (0, 1):
        values = inputs_of(2, "lhc", 6, 3, False)
        if layout:
            values = {n: v.swapaxes(0, 1) if v.ndim == 3 else v for n, v in values.items()}
        mod = from_onnx(model_of("LSTM", values, weights, direction="bidirectional", layout=layout))
        results[layout] = [each.numpy() for each in run(tvm_stitch.compile(mod), given_to(mod, values))]
    y, *states = results[0]
    assert np.allclose(results[1][0], y.transpose(2, 0, 1, 3), atol=1e-6)
    for a, b in zip(results[1][1:], states, strict=True):
        assert np.allclose(a, b.swapaxes(0, 1), atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_weights_that_are_inputs(kind: str) -> None:
    weights = weights_of(kind, 1, "WRB")
    values = inputs_of(1, "h", 5, 2, False)
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    wanted = None
    for as_inputs in (False, True):
        mod = from_onnx(model_of(kind, values, weights, as_inputs, **attributes))
        found = [e.numpy() for e in run(tvm_stitch.compile(mod), given_to(mod, values | weights))]
        assert wanted is None or all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted))
        wanted = found


def test_float64() -> None:
    weights = weights_of("GRU", 1, "WRB", "float64")
    values = {"X": np.random.default_rng(0).standard_normal((4, 2, FEATURES))}
    mod = from_onnx(model_of("GRU", values, weights))
    found = run(tvm_stitch.compile(mod), given_to(mod, values))
    assert str(found[0].dtype) == "float64"
    single = {name: value.astype("float32") for name, value in (weights | values).items()}
    mod = from_onnx(model_of("GRU", {"X": single.pop("X")}, single))
    other = run(tvm_stitch.compile(mod), given_to(mod, {"X": values["X"].astype("float32")}))
    assert np.allclose(found[0].numpy(), other[0].numpy(), atol=1e-5)


def test_refused_attributes_are_named() -> None:
    values, weights = inputs_of(1, "", 3, 2, False), weights_of("RNN", 1, "WR")
    with pytest.raises(UnsupportedModel, match="RNN .*unknown activation 'swish'"):
        from_onnx(model_of("RNN", values, weights, activations=["Swish"]))
    with pytest.raises(UnsupportedModel, match="names 3 activations, and 1 directions take 1 each"):
        from_onnx(model_of("RNN", values, weights, activations=["Tanh"] * 3))
    with pytest.raises(UnsupportedModel, match="do not fit 2 directions"):
        from_onnx(model_of("RNN", values, weights, direction="bidirectional"))


def test_states_of_other_units_are_refused() -> None:
    """PyTorch writes an LSTM with proj_size so. ONNX Runtime refuses it too."""
    values, weights = inputs_of(1, "", 3, 2, False), weights_of("LSTM", 1, "WR")
    hidden = weights["R"].shape[2]
    states = {"initial_h": np.zeros((1, 2, hidden)), "initial_c": np.zeros((1, 2, 4 * hidden))}
    values |= {name: state.astype(values["X"].dtype) for name, state in states.items()}
    with pytest.raises(
        UnsupportedModel, match=rf"has {4 * hidden} units, and its weights have {hidden}; PyTorch"
    ):
        from_onnx(model_of("LSTM", values, weights))
