# SPDX-License-Identifier: Apache-2.0
"""A Relax module compiled by a pipeline: run, counted and timed, kernel by kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from comparison.results import Kernels
from comparison.traffic import kernel_bytes
from tvm_stitch.execution.count import count_lowered, is_compute_intensive
from tvm_stitch.execution.runner import Runner

#: Least seconds of a block of calls, of the whole and of one kernel.
_BLOCK_SECONDS, _KERNEL_SECONDS = 0.2, 0.005


class RelaxProgram:
    """A module compiled by ``relax_pipeline``, on its device, with inputs."""

    def __init__(
        self,
        mod: tvm.IRModule,
        target: Any,
        relax_pipeline: Callable[[tvm.IRModule], tvm.IRModule],
        inputs: Sequence[np.ndarray],
    ) -> None:
        self._target = target
        self._gpu = "gpu" in target.keys
        self._lowered = mod

        @tvm.transform.module_pass(opt_level=0, name="NotedPipeline")
        def noted(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
            self._lowered = relax_pipeline(mod)
            return self._lowered

        start = time.perf_counter()
        self._executable = tvm.compile(mod, target, relax_pipeline=noted)
        self.compile_seconds = time.perf_counter() - start
        self._runner = Runner(self._executable, target, inputs)
        self._calls: int | None = None
        self._repeats: dict[int, int] = {}

    def outputs(self) -> list[np.ndarray]:
        """Return all outputs of one call."""
        return self._runner.outputs()

    def sample(self) -> float:
        """Return the seconds of one call, the mean over a block of calls that lasts long enough to be timed."""
        if self._calls is None:
            once = self._seconds(1)
            self._calls = max(3, min(1000, int(_BLOCK_SECONDS / once) + 1))
        return self._seconds(self._calls)

    def _seconds(self, calls: int) -> float:
        main, arguments = self._runner.vm[self._runner.entry], self._runner.arguments
        self._runner()
        start = time.perf_counter()
        for _ in range(calls):
            main(*arguments)
        self._runner.device.sync()
        return (time.perf_counter() - start) / calls

    def sample_memory(self) -> float:
        """Sum the mean times of the memory-intensive kernels, on the data of a real run.

        When the virtual machine calls such a kernel, TVM's time evaluator repeats it, with CUDA events on a GPU and the
        clock on a CPU. So its inputs are in the cache, if they fit.
        """
        total, place = 0.0, 0

        def instrument(_func: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
            nonlocal total, place
            if before and str(name) in self._memory:
                if place not in self._repeats:  # the first time gives the number of repeats
                    once = self._evaluator(str(name), 1)(*args).mean
                    self._repeats[place] = max(3, min(1000, int(_KERNEL_SECONDS / max(once, 1e-7)) + 1))
                total += self._evaluator(str(name), self._repeats[place])(*args).mean
                place += 1
            return 0

        vm = self._runner.vm
        vm.set_instrument(instrument)
        try:
            self._runner()
        finally:
            vm.set_instrument(lambda *_args: 0)
        return total

    def _evaluator(self, name: str, number: int) -> Any:
        owner = next(m for m in _modules(self._executable.mod) if m.implements_function(name))
        return owner.time_evaluator(name, self._runner.device, number=number)

    @cached_property
    def _memory(self) -> dict[str, int]:
        """Return the bytes of the kernels of PrimFuncs without a contraction, by name."""
        return {
            gvar.name_hint: sum(kernel_bytes(func, self._gpu))
            for gvar, func in self._lowered.functions.items()
            if isinstance(func, tirx.PrimFunc)
            and not func.attrs.get("tirx.is_host_func")
            and not is_compute_intensive(func, gvar.name_hint)
        }

    @cached_property
    def kernels(self) -> Kernels:
        """Count the kernels of one call: on a CPU the calls of compiled functions, on a GPU their launches."""
        count = count_lowered(self._lowered, self._target)
        moved = sum(self._memory.get(name, 0) for name in self._runner.calls())
        return Kernels(count.memory_intensive, count.compute_intensive, moved, count.external)


def _modules(module: Any) -> Iterator[Any]:
    """Return the imported modules of a compiled module, without itself: the virtual machine's lists no functions."""
    for held in module.imports:
        yield held
        yield from _modules(held)
