# SPDX-License-Identifier: Apache-2.0
"""Small Relay modules that several tests build and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor

F32 = "float32"


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(F32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


WEIGHT = drawn(16, 16, seed=1)


def two_layers() -> tvm.IRModule:
    """Build two matmuls with softmax, a split and a concatenation between and after them, with two results."""
    x, w = relay.var("x", shape=(8, 16)), relay.var("w", shape=(16, 16))
    y = relay.nn.softmax(relay.nn.dense(x, w) + relay.const(1.0))
    halves = relay.split(y, 2, axis=1)
    y = relay.concatenate([halves[1] * halves[0], relay.exp(halves[0])], axis=1)
    last = relay.nn.softmax(relay.nn.dense(y, w))
    return tvm.IRModule.from_expr(relay.Function([x, w], relay.Tuple([last, relay.sum(y, axis=1)])))


def two_layers_expected(x: np.ndarray) -> list[np.ndarray]:
    x, w = x.astype("float64"), WEIGHT.astype("float64")
    y = softmax(x @ w.T + 1)
    y = np.concatenate([y[:, 8:] * y[:, :8], np.exp(y[:, :8])], 1)
    return [softmax(y @ w.T), y.sum(1)]


def kernels(lib: Any) -> list[str]:
    """Return the names of the functions that a graph executor's library calls, views left out."""
    nodes = json.loads(lib.get_graph_json())["nodes"]
    names = [n["attrs"]["func_name"] for n in nodes if n["op"] == "tvm_op"]
    return [name for name in names if name != "__nop"]


def run_ahead_of_time(lib: Any, folder: Path, x: np.ndarray) -> list[np.ndarray]:
    """Results of an AOT executor's library, exported to ``folder`` and loaded again."""
    lib.export_library(folder / "model.so")
    loaded = tvm.runtime.load_module(folder / "model.so")
    module = tvm.runtime.executor.AotModule(loaded["default"](tvm.cpu()))
    module.set_input("x", x)
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


def run_graph(lib: Any, *args: np.ndarray, names: tuple[str, ...] = ("x",)) -> list[np.ndarray]:
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.set_input(**dict(zip(names, args)))
    module.run()
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]
