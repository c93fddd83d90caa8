# SPDX-License-Identifier: Apache-2.0
"""A build by relay.build for the graph executor: run, counted and timed, kernel by kernel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm.contrib import graph_executor

from comparison.native import device_of
from comparison.results import Kernels
from comparison.traffic import kernel_bytes
from stitch_testing.relay.count import count_kernels, holds_contraction
from tvm_stitch.execution.kernel_count import CONTRACTION_NAMES
from tvm_stitch.relay.external import COMPILER, KERNEL_ATTR
from tvm_stitch.relay.global_function import registered

#: Least seconds of a block of calls, of the whole and of one kernel.
_BLOCK_SECONDS, _KERNEL_SECONDS = 0.2, 0.005


@contextmanager
def kernels_noted() -> Iterator[dict[str, Any]]:
    """Record the PrimFuncs of stitch ops, by name, that are compiled while this context is open."""
    noted: dict[str, Any] = {}
    compiler = f"relay.ext.{COMPILER}"
    original = tvm.get_global_func(compiler)

    def build(func: Any) -> Any:
        noted[str(func.attrs["global_symbol"])] = func.attrs[KERNEL_ATTR]
        return original(func)

    with registered(compiler, build):
        yield noted


class RelayProgram:
    """A library of ``relay.build`` on its device, with inputs.

    Args:
        lib: for the graph executor, built in this process.
        target: the target of the build.
        inputs: arrays by name.
        stitched: the PrimFuncs of its stitch ops, by name (see :func:`kernels_noted`).
    """

    def __init__(
        self,
        lib: Any,
        target: Any,
        inputs: Mapping[str, np.ndarray],
        stitched: Mapping[str, Any] | None = None,
    ) -> None:
        self._lib = lib
        self._stitched = dict(stitched or {})
        self._gpu = target.kind.name == "cuda"
        self._device = device_of(target)
        self._inputs = {name: tvm.nd.array(value, self._device) for name, value in inputs.items()}
        self._executor = graph_executor.GraphModule(lib["default"](self._device))
        self._executor.set_input(**self._inputs)
        self._graph = json.loads(lib.get_graph_json())
        self._calls: int | None = None
        self._repeats: dict[int, int] = {}
        self._compute: dict[str, bool] = {}

    def outputs(self) -> list[np.ndarray]:
        """Return all outputs of one call."""
        self._executor.run()
        return [self._executor.get_output(i).numpy() for i in range(self._executor.get_num_outputs())]

    def sample(self) -> float:
        """Return the seconds of one call, the mean over a block of calls that lasts long enough to be timed."""
        if self._calls is None:
            once = self._seconds(1)
            self._calls = max(3, min(1000, int(_BLOCK_SECONDS / once) + 1))
        return self._seconds(self._calls)

    def _seconds(self, calls: int) -> float:
        self._executor.run()
        self._device.sync()
        start = time.perf_counter()
        for _ in range(calls):
            self._executor.run()
        self._device.sync()
        return (time.perf_counter() - start) / calls

    def sample_memory(self) -> float:
        """Sum the mean times of the memory-intensive kernels, on the data of a real run.

        The nodes of the graph run in order. TVM's time evaluator repeats a memory-intensive one, with CUDA events on a
        GPU and the clock on a CPU. So its inputs are in the cache, if they fit.
        """
        total = 0.0
        for index, node in enumerate(self._graph["nodes"]):
            if node["op"] != "tvm_op":
                continue
            name = node["attrs"]["func_name"]
            inputs = [self._tensors[source][place] for source, place, *_ in node["inputs"]]
            outputs = self._tensors[index]
            if name == "__nop":
                inputs[0].copyto(outputs[0])
            elif self._is_compute(name):
                self._lib.get_lib()[name](*inputs, *outputs)
            else:
                if index not in self._repeats:  # the first time gives the number of repeats
                    once = self._evaluator(name, 1)(*inputs, *outputs).mean
                    self._repeats[index] = max(3, min(1000, int(_KERNEL_SECONDS / max(once, 1e-7)) + 1))
                total += self._evaluator(name, self._repeats[index])(*inputs, *outputs).mean
        return total

    def _evaluator(self, name: str, number: int) -> Any:
        return self._lib.get_lib().time_evaluator(name, self._device, number=number)

    @cached_property
    def _tensors(self) -> list[list[Any]]:
        """Return the outputs of every node of the graph: inputs and parameters filled, the others allocated."""
        given = {**self._lib.get_params(), **self._inputs}
        shapes, dtypes = (self._graph["attrs"][key][1] for key in ("shape", "dltype"))
        first = self._graph["node_row_ptr"]
        tensors = []
        for index, node in enumerate(self._graph["nodes"]):
            entries = range(first[index], first[index + 1])
            allocated = [tvm.nd.empty(tuple(shapes[e]), dtypes[e], self._device) for e in entries]
            if node["op"] == "null":
                given[node["name"]].copyto(allocated[0])
            tensors.append(allocated)
        return tensors

    def _is_compute(self, name: str) -> bool:
        """Return whether a function has a contraction. If this TVM did not lower it itself, its name decides."""
        if name not in self._compute:
            metadata = self._lib.function_metadata
            functions = list(metadata[name].relay_primfuncs.values()) if name in metadata else []
            self._compute[name] = (
                any(holds_contraction(function) for function in functions)
                if functions
                else any(word in name for word in CONTRACTION_NAMES)
            )
        return self._compute[name]

    @cached_property
    def kernels(self) -> Kernels:
        """Count the kernels of one call: on a CPU the graph's nodes, on a GPU their launches. Views do not count."""
        count = count_kernels(self._lib)
        names = [n["attrs"]["func_name"] for n in self._graph["nodes"] if n["op"] == "tvm_op"]
        bytes_of = {
            name: self._bytes(name) for name in {*names} if name != "__nop" and not self._is_compute(name)
        }
        moved = sum(bytes_of.get(name, 0) for name in names)
        return Kernels(count.memory_intensive, count.compute_intensive, moved, count.external)

    def _bytes(self, name: str) -> int:
        """Return the bytes that the kernels of one node move."""
        metadata = self._lib.function_metadata
        functions = list(metadata[name].tir_primfuncs.values()) if name in metadata else []
        if not functions:
            if name not in self._stitched:
                raise ValueError(f"the kernel of '{name}' is not known: its bytes cannot be counted")
            functions = [self._stitched[name]]
        return sum(sum(kernel_bytes(function, self._gpu)) for function in functions)
