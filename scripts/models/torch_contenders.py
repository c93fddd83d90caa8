# SPDX-License-Identifier: Apache-2.0
"""PyTorch, eager and compiled by Inductor in several ways, and its float64 results as reference for all."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from .errors import draws, mean_error
from .job import Job, Unavailable
from .kernel_times import is_memory_intensive, kernel_times
from .load import load_torch
from .ready import Ready

WARM_CALLS = 3
"""Calls before a compiled model is stable: Inductor records CUDA graphs in the second, then replays them."""


def eager(job: Job) -> Ready:
    """Eager PyTorch."""
    return _ready(job, None)


def inductor(job: Job) -> Ready:
    """torch.compile's default."""
    return _ready(job, "default")


def inductor_frozen(job: Job) -> Ready:
    """torch.compile with constant parameters, folded and packed as in the TVM builds."""
    from torch._inductor import config

    config.freezing = True
    return _ready(job, "default")


def inductor_graphs(job: Job) -> Ready:
    """torch.compile with CUDA graphs (mode reduce-overhead).

    Raises:
        Unavailable: on a CPU.
    """
    if not job.on_gpu:
        raise Unavailable("reduce-overhead is CUDA graphs: on a CPU it is the default mode")
    return _ready(job, "reduce-overhead")


def inductor_tuned(job: Job) -> Ready:
    """torch.compile that measures alternatives (mode max-autotune, which has CUDA graphs too)."""
    return _ready(job, "max-autotune")


def flattened(result: Any) -> list[Any]:
    """Return all tensors of a model's result."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for item in result for tensor in flattened(item)]


def to_arrays(result: Any) -> list[np.ndarray]:
    """Return a model's results on the host, half types as float32, which holds them."""
    tensors = [tensor.detach().cpu() for tensor in flattened(result)]
    halves = (torch.float16, torch.bfloat16)
    return [(t.float() if t.dtype in halves else t).numpy() for t in tensors]


def cast_inputs(inputs: list[Any], dtype: Any, device: str = "cpu") -> list[Any]:
    """Return the inputs on a device, floating-point ones in ``dtype``."""
    return [x.to(device, dtype if x.is_floating_point() else x.dtype) for x in inputs]


def tensor_draws(inputs: list[Any], count: int) -> list[list[Any]]:
    """Return several draws of a model's inputs."""
    return [[torch.from_numpy(x) for x in each] for each in draws([x.numpy() for x in inputs], count)]


def full_precision() -> None:
    """Compute float32 products exactly on a GPU, as TVM's kernels do."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _ready(job: Job, mode: str | None) -> Ready:
    torch.set_num_threads(job.threads)
    full_precision()
    if job.on_gpu and not torch.cuda.is_available():
        raise Unavailable("this PyTorch has no CUDA")
    device, dtype = "cuda" if job.on_gpu else "cpu", getattr(torch, job.dtype)
    made = load_torch(job)
    module = made.module.to(device=device, dtype=dtype)
    inputs, *others = [cast_inputs(each, dtype, device) for each in tensor_draws(made.inputs, job.draws)]
    begin = time.perf_counter()
    function = module if mode is None else torch.compile(module, mode=mode, dynamic=False)

    def call(inputs: list[Any] = inputs) -> Any:
        if mode is not None and job.on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return function(*inputs)

    results = [to_arrays(call())]
    compiled = time.perf_counter() - begin
    results += [to_arrays(call(each)) for each in others]
    for _ in range(WARM_CALLS - 1 if mode is not None else 0):
        call()
    told: dict[str, Any] = {"compile_s": compiled}
    if not job.on_gpu:
        return Ready(call, lambda: results, told=told)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    told["device"] = torch.cuda.get_device_name()
    ready = Ready(call, lambda: results, torch.cuda.synchronize, told, on_gpu=True)
    ready.afterwards = lambda: {
        "memory_bytes": torch.cuda.max_memory_allocated(),
        **kernel_times(ready, is_memory_intensive),
    }
    return ready


def reference(job: Job) -> Ready:
    """Run the model in float64, and report the error of PyTorch's own result in the job's type.

    This runs on the GPU if the contenders do: a CPU would take minutes for a large batch.
    """
    torch.set_num_threads(job.threads)
    full_precision()
    made = load_torch(job)
    device, dtype = "cuda" if job.on_gpu and torch.cuda.is_available() else "cpu", getattr(torch, job.dtype)
    inputs = tensor_draws(made.inputs, job.draws)
    with torch.no_grad():
        module = made.module.to(device, dtype)
        own = [to_arrays(module(*cast_inputs(each, dtype, device))) for each in inputs]
        # Parameters were rounded to the type, so that nothing is lost on the way there and back.
        module = module.double()
        exact = [to_arrays(module(*cast_inputs(each, torch.float64, device))) for each in inputs]
    told = {
        "what": "PyTorch in float64",
        "pytorch_error": mean_error(own, exact),
        "parameters": sum(p.numel() for p in made.module.parameters()),
    }
    return Ready(lambda: None, lambda: exact, told=told)
