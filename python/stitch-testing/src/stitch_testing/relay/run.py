# SPDX-License-Identifier: Apache-2.0
"""Build Relay modules, stock or stitched, and run them on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor

from tvm_stitch.config import StitchConfig

from .reference import Inputs, Params, to_numpy

Build = Callable[[tvm.IRModule, tvm.target.Target, Params], Any]
"""Compiles a module for a target with bound parameters, and returns a library like ``relay.build``."""


def build_stock(mod: tvm.IRModule, target: tvm.target.Target, params: Params = None) -> Any:
    """Build a module with ``relay.build``."""
    return relay.build(mod, target, params=dict(params or {}))


def build_stitched(
    mod: tvm.IRModule, target: tvm.target.Target, params: Params = None, config: StitchConfig | None = None
) -> Any:
    """Build a module with ``relay.build`` and stitching."""
    from tvm_stitch import relay as stitch_relay

    enabled: AbstractContextManager[Any] = stitch_relay.enable(config)
    with enabled:
        return relay.build(mod, target, params=dict(params or {}))


def run(lib: Any, inputs: Inputs, device: tvm.runtime.Device | None = None) -> list[np.ndarray]:
    """Run a library of ``relay.build``. Arguments are in the function's order, or by name."""
    device = device or tvm.cpu()
    module = graph_executor.GraphModule(lib["default"](device))
    named: Mapping[str, np.ndarray]
    if isinstance(inputs, Mapping):
        named = inputs
    else:
        named = dict(zip(argument_names(lib), inputs, strict=True))
    for name, array in named.items():
        module.set_input(name, _to_tvm(array, device))
    module.run()
    return [to_numpy(module.get_output(place)) for place in range(module.get_num_outputs())]


def argument_names(lib: Any) -> list[str]:
    """Return the names of the arguments that ``relay.build`` did not bind, in the function's order."""
    graph = json.loads(lib.get_graph_json())
    names = [graph["nodes"][place]["name"] for place in graph["arg_nodes"]]
    bound = set(lib.get_params())
    return [name for name in names if name not in bound]


def _to_tvm(array: np.ndarray, device: tvm.runtime.Device) -> tvm.nd.NDArray:
    if array.dtype != ml_dtypes.bfloat16:
        return tvm.nd.array(np.ascontiguousarray(array), device)
    return tvm.nd.empty(array.shape, "bfloat16", device).copyfrom(array)
