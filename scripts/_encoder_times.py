# SPDX-License-Identifier: Apache-2.0
"""Times of an encoder on a GPU: TVM's matmuls, cuBLASLt, and PyTorch, with and without CUDA graphs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _cuda_events import milliseconds
from _gpu_encoder import Sizes, relax_encoder, torch_encoder, weights_of
from _measure import _device_activity
from tvm import relax

from tvm_stitch import StitchConfig
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target

GRAPH = {"relax.backend.use_cuda_graph": True}
BLOCKS, CALLS = 5, 10


def time_encoder(sizes: Sizes, compiled: bool) -> list[str]:
    """Time the encoder by TVM's matmuls, by cuBLASLt, and in PyTorch. Return too large errors against float64."""
    import torch

    weights = weights_of(sizes)
    x = np.random.default_rng(1).standard_normal(sizes.shape, dtype=np.float32)
    mod, model = relax_encoder(sizes, weights), torch_encoder(sizes, weights)
    given = torch.from_numpy(x).cuda()
    ours: dict[str, tuple[str, dict[str, Any]]] = {
        "stitched, TVM's matmuls": ("tvm", {}),
        "stitched, cuBLASLt": ("auto", {}),
        "stitched, cuBLASLt, CUDA graph": ("auto", GRAPH),
    }
    contenders: dict[str, Callable[[], Any]] = {}
    for name, (compute, options) in ours.items():
        contenders[name] = _compiled(mod, x, StitchConfig(compute=compute), options)
    contenders["PyTorch eager"] = lambda: model(given)
    if compiled:
        default = torch.compile(model)
        contenders["torch.compile"] = lambda: default(given)
        graphs = torch.compile(model, mode="reduce-overhead")
        contenders["torch.compile, reduce-overhead"] = lambda: graphs(given)
    with torch.no_grad():
        expected = torch_encoder(sizes, weights).double()(given.double()).cpu().numpy()
        errors = {name: _error(call, expected) for name, call in contenders.items()}
        print("timing ...", flush=True)
        spent_by = _events(contenders)
        profiles = {name: _device_activity(call, 1) for name, call in contenders.items()}
    for name in ("stitched, cuBLASLt", "torch.compile"):
        _print_kernels(name, profiles.get(name, []))
    device = torch.cuda.get_device_name()
    print(f"\nencoder, {sizes.layers} layers, {sizes.shape}, float32, {device}, torch {torch.__version__}")
    print(f"{sizes.operations / 1e9:.0f} GFLOP of products")
    print(f"{'':32}{'ms a call':>10}{'least':>8}{'wall':>8}{'kernels':>9}{'kernels ms':>12}{'error':>10}")
    for name, (median, least, wall) in spent_by.items():
        kernels = [e for e in profiles[name] if not e[0].startswith(("Memcpy", "Memset"))]
        spent = sum(seconds for _, seconds in profiles[name]) * 1e3
        print(
            f"{name:32}{median:10.2f}{least:8.2f}{wall:8.2f}{len(kernels):9d}{spent:12.2f}{errors[name]:10.1e}"
        )
    return [f"{name} has an error of {e:.1e}" for name, e in errors.items() if not e < 1e-4]


def _compiled(mod: tvm.IRModule, x: np.ndarray, config: StitchConfig, options: dict[str, Any]) -> Any:
    target, device = resolve_target("cuda"), tvm.cuda()
    start = time.perf_counter()
    with tvm.transform.PassContext(config=options):
        executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, config))
    vm = relax.VirtualMachine(executable, device)
    main, given = vm["main"], tvm.runtime.tensor(x, device)
    print(f"compiled in {time.perf_counter() - start:.0f} s: {config.compute} {options}", flush=True)
    return lambda: main(given)


def _error(call: Callable[[], Any], expected: np.ndarray) -> float:
    for _ in range(3):  # the first call captures a CUDA graph, later ones replay it
        result = call()
    array = result.cpu().numpy() if hasattr(result, "cpu") else result.numpy()
    return float(np.linalg.norm(array - expected) / np.linalg.norm(expected))


def _events(contenders: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float, float]]:
    """Return the median and least milliseconds of a call by CUDA events around blocks, and one call's wall time."""
    import torch

    spent: dict[str, list[float]] = {name: [] for name in contenders}
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(BLOCKS):
        for name, call in contenders.items():
            call()
            torch.cuda.synchronize()
            spent[name].append(milliseconds(call, CALLS))
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            wall[name].append((time.perf_counter() - start) * 1e3)
    return {n: (statistics.median(s), min(s), statistics.median(wall[n])) for n, s in spent.items()}


def _print_kernels(name: str, events: list[tuple[str, float]], most: int = 14) -> None:
    total: dict[str, list[float]] = {}
    for kernel, seconds in events:
        total.setdefault(kernel, []).append(seconds * 1e6)
    print(f"\n{name}: kernels by time")
    for kernel, spent in sorted(total.items(), key=lambda item: -sum(item[1]))[:most]:
        print(f"{sum(spent):10.0f} us {len(spent):4d} x  {kernel[:90]}")
