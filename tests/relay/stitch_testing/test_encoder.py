# SPDX-License-Identifier: Apache-2.0
"""Encoders in Relay, imported and by hand, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from stitch_testing.relay.count import count_kernels
from stitch_testing.relay.encoder import bert_from_onnx, bert_in_relay, layer_in_relay, run_onnxruntime
from stitch_testing.relay.reference import evaluate
from stitch_testing.relay.run import build_stock, run
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert, random_inputs

SMALL = BertConfig(layers=1, hidden=32, heads=4, sequence=12, ffn=64, vocabulary=50, batch=2)
LLVM = tvm.target.Target("llvm")


@pytest.mark.parametrize("make", [bert_from_onnx, bert_in_relay], ids=["onnx", "relay"])
def test_stock_llvm_agrees_with_onnxruntime(make: object) -> None:
    pytest.importorskip("onnxruntime")
    inputs = random_inputs(SMALL)
    (wanted,) = run_onnxruntime(build_bert(SMALL), inputs)
    mod, params = make(SMALL)  # type: ignore[operator]
    lib = build_stock(mod, LLVM, params)
    (found,) = run(lib, inputs)
    assert found.shape == (2, 12, 32) and np.abs(found - wanted).max() < 1e-5
    assert np.abs(evaluate(mod, inputs, params)[0] - wanted).max() < 1e-5
    assert count_kernels(lib).compute_intensive == 8


def test_one_layer_alone() -> None:
    mod, params = layer_in_relay(SMALL)
    x = np.random.default_rng(0).standard_normal((2, 12, 32)).astype("float32")
    (found,) = run(build_stock(mod, LLVM, params), [x])
    (wanted,) = evaluate(mod, [x], params)
    assert np.abs(found - wanted).max() < 1e-5 and np.abs(wanted).max() > 1
    assert all(name.startswith("layer0_") for name in params)
