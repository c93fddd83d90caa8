# SPDX-License-Identifier: Apache-2.0
"""The compilers that bench_grid.py compares. Each works in a process of its own, on inputs drawn on the device."""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _grid_peers
from _flushed import FlushedTimer
from _grid_jobs import Answer, Job, Measured, Target

from stitch_testing.random.graphs import describe_error
from tvm_stitch.testing.workloads.grid_case import Domain, GridCase
from tvm_stitch.testing.workloads.grid_cases import grid_cases

#: Takes torch tensors, returns one result or several, of the library's own kind and perhaps not computed yet.
Compiled = Callable[..., Any]


def draw(case: GridCase, device: str, seed: int = 0) -> list[Any]:
    """Draw the case's inputs as torch tensors on their device. They are the same for all processes of a machine."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def one(domain: Domain, shape: tuple[int, ...], dtype: str) -> Any:
        drawn = torch.empty(shape, device=device, dtype=getattr(torch, dtype))
        if domain.kind == "normal":
            return drawn.normal_(domain.low, domain.high, generator=generator)
        if domain.kind == "uniform":
            return drawn.uniform_(domain.low, domain.high, generator=generator)
        return drawn.random_(int(domain.low), int(domain.high), generator=generator)

    return [one(d, s.shape, s.dtype) for d, s in zip(case.domains, case.arguments, strict=True)]


def expected(case: GridCase, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of PyTorch without compiling, in float64."""
    import torch

    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        result = _grid_peers.torch_function(case.name, case.sizes)(*wide)
    return list(result) if isinstance(result, tuple) else [result]


def problems(outputs: Sequence[Any], wanted: Sequence[Any], relative: float = 8e-5) -> list[str]:
    """Describe errors, one line for each output. Errors are relative to the output's magnitude and root mean square.

    Sums of many numbers of both signs are as wrong in one element as in another, however small that element is.
    """
    if len(outputs) != len(wanted):
        return [f"{len(outputs)} outputs, expected {len(wanted)}"]
    texts = []
    for place, (actual, exact) in enumerate(zip(outputs, wanted, strict=True)):
        if tuple(actual.shape) != tuple(exact.shape):
            texts.append(f"output {place}: shape {tuple(actual.shape)}, expected {tuple(exact.shape)}")
            continue
        scale = max(1.0, float(exact.square().mean().sqrt()))
        excess = (actual.double() - exact).abs() - relative * (exact.abs() + scale)
        worst = float(excess.nan_to_num(nan=float("inf")).max())
        if worst > 0:
            wrong = int((~(excess <= 0)).sum())
            texts.append(f"output {place}: {wrong} of {exact.numel()} wrong, by up to {worst:.3g} too much")
    return texts


def _tvm(stitch: bool) -> Callable[[GridCase, Target], Compiled]:
    def make(case: GridCase, target: Target) -> Compiled:
        import tvm
        from tvm import relax

        device = tvm.cuda(0) if target == "cuda" else tvm.cpu()
        chosen = tvm.target.Target.from_device(device) if target == "cuda" else tvm.target.Target("llvm")
        pipeline: Any = relax.get_default_pipeline(chosen)
        if stitch:
            pipeline = importlib.import_module("tvm_stitch.relax").pipeline(chosen)
        main = relax.VirtualMachine(tvm.compile(case.build(), chosen, relax_pipeline=pipeline), device)[
            "main"
        ]
        return lambda *args: main(*(tvm.runtime.from_dlpack(x) for x in args))

    return make


def _torch(compile_it: bool) -> Callable[[GridCase, Target], Compiled]:
    def make(case: GridCase, target: Target) -> Compiled:
        import torch

        function = _grid_peers.torch_function(case.name, case.sizes)
        if compile_it:
            config: Any = torch._dynamo.config
            # Every case is the same code with other arguments. There are more of them than dynamo expects.
            config.recompile_limit = config.accumulated_recompile_limit = 10_000
            config.fail_on_recompile_limit_hit = True
            function = torch.compile(function, dynamic=False)

        def run(*args: Any) -> Any:
            with torch.no_grad():
                return function(*args)

        return run

    return make


def _xla(case: GridCase, target: Target) -> Compiled:
    jax = importlib.import_module("jax")
    function = jax.jit(_grid_peers.jax_function(case.name, case.sizes))
    return lambda *args: jax.block_until_ready(function(*map(jax.dlpack.from_dlpack, args)))


def _copy(case: GridCase, target: Target) -> Compiled:
    """Move as many bytes as the case, half read and half written. There are no outputs to compare."""
    import torch

    device = "cuda" if target == "cuda" else "cpu"
    source = torch.zeros(case.bytes_least() // 2, dtype=torch.uint8, device=device)
    sink = torch.empty_like(source)
    return lambda *args: sink.copy_(source)


MAKERS: Mapping[str, Callable[[GridCase, Target], Compiled]] = {
    "stitched": _tvm(True),
    "stock": _tvm(False),
    "inductor": _torch(True),
    "eager": _torch(False),
    "xla": _xla,
    "copy": _copy,
}

#: Environment variables of a contender's process, set before its library is loaded.
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    # XLA takes most of the GPU's memory at once. Its kernels are harder to tell apart as CUDA graphs.
    "xla": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": "--xla_gpu_enable_command_buffer="},
    # Processes like these may have no children of multiprocessing's.
    "inductor": {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
}


_ready: dict[Job, Compiled] = {}
_timers: list[FlushedTimer] = []


def work(job: Job) -> Answer:
    """Do one step in this process. The answer describes a failure."""
    start = time.perf_counter()
    try:
        answer = _work(job)
    except Exception as error:
        answer = Answer(describe_error(error))
    finally:
        _free(job.target)
    return Answer(answer.problem, answer.measured, time.perf_counter() - start)


def _work(job: Job) -> Answer:
    os.environ.update(ENVIRONMENT.get(job.contender, {}))
    case = grid_cases(job.scale)[job.case]
    key = Job("prepare", job.contender, job.case, job.scale, job.target)
    inputs = [] if job.contender == "copy" else draw(case, "cuda" if job.target == "cuda" else "cpu")
    _synchronize(job.target)
    if key not in _ready:
        compiled = MAKERS[job.contender](case, job.target)
        if wrong := _compare(case, compiled, inputs, job):
            return Answer("wrong: " + "; ".join(wrong[:3]))
        _ready[key] = compiled
    if job.step == "prepare":
        return Answer()
    compiled = _ready.pop(key)
    if job.target == "llvm":
        return Answer(measured=_wall_time(lambda: compiled(*inputs)))
    if not _timers:
        _timers.append(FlushedTimer())
    return Answer(measured=_timers[0](lambda: compiled(*inputs)))


def _compare(case: GridCase, compiled: Compiled, inputs: Sequence[Any], job: Job) -> list[str]:
    import torch

    result = compiled(*inputs)
    _synchronize(job.target)
    if job.contender == "copy":
        return []
    outputs = [result] if hasattr(result, "shape") else list(result)
    tensors = [x if isinstance(x, torch.Tensor) else torch.from_dlpack(x) for x in outputs]
    return problems(tensors, expected(case, inputs))


def _wall_time(run: Callable[[], object]) -> Measured:
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return Measured(statistics.median(spent), min(spent), max(spent), None)


def _synchronize(target: Target) -> None:
    if target == "cuda":
        import torch

        torch.cuda.synchronize()


def _free(target: Target) -> None:
    """Release cached device memory: the other contenders' processes need it too."""
    gc.collect()
    if target == "cuda":
        import torch

        torch.cuda.empty_cache()
