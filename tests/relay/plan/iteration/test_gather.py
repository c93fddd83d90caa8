# SPDX-License-Identifier: Apache-2.0
"""Gathers in one kernel whose indices come of one input, which every operator that was read has another name for."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relay

from tests.relay.modules import kernels, run_graph
from tvm_stitch.relay import enable

ROWS, CLASSES = 6, 11


def weighted_loss() -> tvm.IRModule:
    """Cross-entropy with a weight a class: labels below zero count from the end, as a frontend writes it."""
    x = relay.var("x", shape=(ROWS, CLASSES))
    labels = relay.var("labels", shape=(ROWS,), dtype="int64")
    weights = relay.var("weights", shape=(CLASSES,))
    zero, classes = relay.const(0, "int64"), relay.const(CLASSES, "int64")
    label = relay.where(relay.less(labels, zero), relay.add(labels, classes), labels)
    chosen = relay.gather(relay.log(relay.nn.softmax(x)), 1, relay.expand_dims(label, 1))
    scaled = relay.exp(weights)
    weight = relay.gather_nd(scaled, relay.nn.batch_flatten(relay.expand_dims(label, 0)))
    loss = relay.negative(relay.squeeze(chosen, [1])) * weight
    return tvm.IRModule.from_expr(relay.Function([x, labels, weights], loss))


def test_a_loss_with_weights_is_one_kernel() -> None:
    with enable() as recorder:
        lib = relay.build(weighted_loss(), "llvm")
    assert len(kernels(lib)) == 1 and not recorder.report().boundaries
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, CLASSES)).astype("float32")
    labels = rng.integers(-CLASSES, CLASSES, ROWS)
    weights = rng.standard_normal(CLASSES).astype("float32")
    (got,) = run_graph(lib, x, labels, weights, names=("x", "labels", "weights"))
    wide = np.exp(x.astype("float64"))
    logs = np.log(wide / wide.sum(1, keepdims=True))
    expected = -logs[np.arange(ROWS), labels] * np.exp(weights.astype("float64"))[labels]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_indices_of_two_inputs_stay_apart() -> None:
    x = relay.var("x", shape=(ROWS, CLASSES))
    first, second = (relay.var(name, shape=(ROWS, 3), dtype="int64") for name in "ij")
    body = relay.gather(relay.exp(x), 1, first) + relay.gather(relay.tanh(x), 1, second)
    with enable():
        lib = relay.build(tvm.IRModule.from_expr(relay.Function([x, first, second], body)), "llvm")
    assert len(kernels(lib)) == 1
    rng = np.random.default_rng(4)
    data = rng.standard_normal((ROWS, CLASSES)).astype("float32")
    i, j = rng.integers(0, CLASSES, (2, ROWS, 3))
    (got,) = run_graph(lib, data, i, j, names=("x", "i", "j"))
    wide = data.astype("float64")
    expected = np.take_along_axis(np.exp(wide), i, 1) + np.take_along_axis(np.tanh(wide), j, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
