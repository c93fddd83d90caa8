# SPDX-License-Identifier: Apache-2.0
"""TVM's own pipeline, and the stitched one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax

from tvm_stitch import StitchConfig
from tvm_stitch.execution.count import count_lowered
from tvm_stitch.execution.kernel_clock import HostClock
from tvm_stitch.execution.runner import Runner
from tvm_stitch.relax.build import build
from tvm_stitch.target import this_cpu

from .errors import draws
from .job import Job
from .kernel_times import kernel_times
from .load import Loaded, relax_module
from .ready import Ready

SHARES = 5
"""Most instrumented calls for the median time of the memory-intensive part."""
SHARE_SECONDS = 10.0


def target_of(job: Job) -> Any:
    """Return the TVM target: this machine's GPU, its CPU, or plain llvm (SSE2 on x86)."""
    if job.on_gpu:
        return tvm.target.Target.from_device(tvm.cuda(0))
    if job.target == "native":
        return tvm.target.Target({**this_cpu(), "num-cores": job.threads})
    return tvm.target.Target(job.target)


def stock(job: Job) -> Ready:
    """TVM's default pipeline for the target."""
    return _ready(job, stitched=False)


def stitched(job: Job) -> Ready:
    """TVM with stitching and this package's templates."""
    return _ready(job, stitched=True)


def _compile(
    job: Job, mod: tvm.IRModule, target: Any, stitched: bool
) -> tuple[Any, tvm.IRModule, str | None]:
    """Return the executable, the module of its code, and the reason if all of it was left to TVM."""
    lowered: list[tvm.IRModule] = []

    def lower(module: tvm.IRModule) -> tvm.IRModule:
        lowered[:] = [relax.get_default_pipeline(target)(module)]
        return lowered[0]

    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": job.cuda_graph}):
        if stitched:
            built = build(mod, target, StitchConfig(**job.config))
            return built.executable, built.lowered, built.recorder.declined.get("all")
        with target:
            executable = relax.build(mod, target, relax_pipeline=lower)
        return executable, lowered[0], None


def _ready(job: Job, stitched: bool) -> Ready:
    target = target_of(job)
    begin = time.perf_counter()
    loaded = Loaded.of(job)
    mod = relax_module(job, loaded)
    arrays, *others = draws(loaded.arrays(job.dtype), job.draws)
    del loaded  # from here on the module's constants hold the parameters
    imported = time.perf_counter()
    executable, lowered, left = _compile(job, mod, target, stitched)
    del mod
    runner = Runner(executable, target, arrays)
    results = [runner.outputs()]
    done = time.perf_counter()
    results += [Runner(executable, target, each).outputs() for each in others]
    count = count_lowered(lowered, target)
    del lowered
    main, arguments = runner.vm["main"], runner.arguments
    told = {
        "target": str(target),
        "import_s": imported - begin,
        "compile_s": done - imported,
        "kernels": {key: value for key, value in count.to_dict().items() if key != "names"},
    }

    if left is not None:
        told["unstitched"] = left

    memory_intensive = frozenset(count.names_of("memory"))
    ready = Ready(lambda: main(*arguments), lambda: results, runner.device.sync, told, on_gpu=job.on_gpu)

    def afterwards() -> dict[str, Any]:
        if not job.on_gpu:
            return {"memory_intensive_s": _share(runner, memory_intensive)}
        return kernel_times(ready, lambda name: name in memory_intensive or name.startswith("Mem"))

    ready.afterwards = afterwards
    return ready


def _share(runner: Runner, names: Collection[str]) -> float:
    """Return the seconds of a call in memory-intensive kernels."""
    found: list[float] = []
    end = time.perf_counter() + SHARE_SECONDS
    while len(found) < SHARES and (not found or time.perf_counter() < end):
        times = runner.kernel_times(HostClock(), len(names))
        found.append(sum(seconds for name, seconds in times if name in names))
    return statistics.median(found)
