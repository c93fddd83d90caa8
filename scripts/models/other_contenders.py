# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime, by an export of the PyTorch model, and XLA, by torchax."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .errors import draws
from .job import Job, Unavailable
from .load import Loaded, load_torch
from .ready import Ready


def _export(job: Job, loaded: Loaded) -> Path:
    """Export the model to ONNX: by the exporter of exported programs if its package is installed, else by tracing."""
    import torch

    from .torch_contenders import cast_inputs

    made, dtype = loaded.torch(), getattr(torch, job.dtype)
    path = Path(job.folder) / "exported.onnx"
    by_program = importlib.util.find_spec("onnxscript") is not None
    inputs = tuple(cast_inputs(made.inputs, dtype))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(made.module.to(dtype), inputs, str(path), dynamo=by_program)
    return path


def onnxruntime(job: Job) -> Ready:
    """ONNX Runtime on the target's provider.

    Raises:
        Unavailable: if it is not installed, or lacks that provider.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise Unavailable("onnxruntime is not installed")
    import onnxruntime as ort

    provider = "CUDAExecutionProvider" if job.on_gpu else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise Unavailable(f"this onnxruntime has no {provider}")
    begin = time.perf_counter()
    loaded = Loaded.of(job)
    path = Path(job.model) if job.is_onnx else _export(job, loaded)
    inputs = draws(loaded.arrays(job.dtype), job.draws)
    del loaded
    imported = time.perf_counter()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    own = {"use_tf32": "0"} if job.on_gpu else {}
    session = ort.InferenceSession(str(path), options, providers=[(provider, own)])
    device = "cuda" if job.on_gpu else "cpu"
    binding = session.io_binding()
    for spec in session.get_outputs():
        binding.bind_output(spec.name, device)

    def call() -> None:
        session.run_with_iobinding(binding)

    def outputs(arrays: list[np.ndarray]) -> list[np.ndarray]:
        for spec, array in zip(session.get_inputs(), arrays):
            binding.bind_ortvalue_input(spec.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
        call()
        return [np.asarray(output) for output in binding.copy_outputs_to_cpu()]

    outputs(inputs[0])
    compiled = time.perf_counter() - imported
    results = [outputs(arrays) for arrays in reversed(inputs)][::-1]  # the first ones remain bound
    told = {"import_s": imported - begin, "compile_s": compiled}
    # Its calls wait for the device themselves, so the host's clock suffices.
    return Ready(call, lambda: results, told=told)


def xla(job: Job) -> Ready:
    """Compile torchax's form of the PyTorch model with JAX's jit.

    Raises:
        Unavailable: if jax or torchax is not installed, does not import with this PyTorch, or has no such device.
    """
    missing = [name for name in ("jax", "torchax") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)}")
    if not job.on_gpu and hasattr(os, "sched_setaffinity"):
        # XLA starts a thread for each processor that it may use, and has no option for that.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    try:
        jax, torchax = importlib.import_module("jax"), importlib.import_module("torchax")
    except Exception as error:
        raise Unavailable(f"does not import here: {str(error).splitlines()[0]}") from error
    import torch

    from .torch_contenders import cast_inputs, tensor_draws

    jax.config.update("jax_default_matmul_precision", "highest")
    device = jax.devices("gpu" if job.on_gpu else "cpu")[0]
    made, dtype = load_torch(job), getattr(torch, job.dtype)
    begin = time.perf_counter()
    weights, function = torchax.extract_jax(made.module.to(dtype))
    compiled = jax.jit(function)
    with jax.default_device(device):
        arrays, *others = [
            tuple(jax.device_put(_to_jax(jax, x), device) for x in cast_inputs(each, dtype))
            for each in tensor_draws(made.inputs, job.draws)
        ]
        weights = jax.device_put(weights, device)
        results = [jax.block_until_ready(compiled(weights, arrays))]
        compile_s = time.perf_counter() - begin
        results += [compiled(weights, each) for each in others]
    told = {"compile_s": compile_s}
    found = [[np.asarray(x) for x in jax.tree_util.tree_leaves(result)] for result in results]

    def call() -> Any:
        return jax.block_until_ready(compiled(weights, arrays))

    return Ready(call, lambda: found, told=told)


def _to_jax(jax: Any, tensor: Any) -> Any:
    if str(tensor.dtype) == "torch.bfloat16":
        return jax.numpy.asarray(tensor.float().numpy(), dtype=jax.numpy.bfloat16)
    return jax.numpy.asarray(tensor.numpy())


def reference(job: Job) -> Ready:
    """Compute the reference of an ONNX file: ONNX Runtime on the CPU, in the model's types."""
    ready = onnxruntime(replace(job, target="llvm"))
    return Ready(lambda: None, ready.outputs, told={"what": "ONNX Runtime in the model's own types"})
