# SPDX-License-Identifier: Apache-2.0
"""The compilers that the benchmarks compare, each as a function that makes a callable of a workload."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import _peers
import numpy as np
import tvm
from _measure import Contender
from tvm import relax

from tvm_stitch.target import this_cpu
from tvm_stitch.testing.workloads.case import Case

#: Everything a contender needs: the case, its input sets, and "llvm" or "cuda".
Make = Callable[[Case, Sequence[list[np.ndarray]], str], "Prepared"]


class Prepared:
    """A compiled workload that takes the next input set at each call and keeps the last outputs."""

    def __init__(
        self, function: Callable[..., Any], sets: Sequence[Sequence[Any]], fetch: Callable[[Any], Any]
    ):
        self._function = function
        self._sets = itertools.cycle(sets)
        self._first = sets[0]
        self._fetch = fetch

    def __call__(self) -> Any:
        return self._function(*next(self._sets))

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs for the first input set, on the host."""
        result = self._function(*self._first)
        single = hasattr(result, "shape")
        return [self._fetch(tensor) for tensor in ([result] if single else result)]


def input_sets(case: Case, target: str, cache_bytes: int = 60 << 20) -> list[list[np.ndarray]]:
    """Return input sets to rotate among: on a GPU enough that none is still in its cache at its next turn."""
    count = 1
    if target == "cuda":
        count = 1 if case.bytes_least() > 4 * cache_bytes else 1 + 4 * cache_bytes // case.bytes_least()
    rng = np.random.default_rng(0)
    return [case.inputs(rng) for _ in range(min(count, 16))]


def tvm_target(target: str, mcpu: str = "native") -> Any:
    """Return the TVM target of both TVM contenders: this machine's GPU, or its CPU (``"generic"``: baseline x86-64)."""
    if target == "cuda":
        return tvm.target.Target.from_device(tvm.cuda(0))
    if mcpu == "generic":
        return tvm.target.Target("llvm")
    return tvm.target.Target(this_cpu() if mcpu == "native" else {"kind": "llvm", "mcpu": mcpu})


MCPU = "native"
"""The processor that the TVM contenders compile for on a CPU. The caller sets it before anything is compiled."""


def _relax(case: Case, sets: Sequence[list[np.ndarray]], target: str, stitched: bool) -> Prepared:
    device = tvm.cuda(0) if target == "cuda" else tvm.cpu()
    chosen = tvm_target(target, MCPU)
    pipeline: Any = relax.get_default_pipeline(chosen)
    if stitched:
        import tvm_stitch.relax

        pipeline = tvm_stitch.relax.pipeline(chosen)
    vm = relax.VirtualMachine(tvm.compile(case.build(), chosen, relax_pipeline=pipeline), device)
    return Prepared(
        vm["main"], [[tvm.runtime.tensor(x, device) for x in s] for s in sets], lambda t: t.numpy()
    )


def stitched(case: Case, sets: Sequence[list[np.ndarray]], target: str) -> Prepared:
    """TVM with stitching."""
    return _relax(case, sets, target, True)


def stock(case: Case, sets: Sequence[list[np.ndarray]], target: str) -> Prepared:
    """TVM's default pipeline."""
    return _relax(case, sets, target, False)


def _torch(case: Case, sets: Sequence[list[np.ndarray]], target: str, compiled: bool) -> Prepared:
    import torch

    device = "cuda" if target == "cuda" else "cpu"
    function = _peers.torch_function(case.name, case.sizes)
    if isinstance(function, torch.nn.Module):
        function = function.to(device)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return function(*args)

    return Prepared(run, [[_peers.to_torch(x, device) for x in s] for s in sets], _peers.from_torch)


def inductor(case: Case, sets: Sequence[list[np.ndarray]], target: str) -> Prepared:
    """PyTorch with torch.compile."""
    return _torch(case, sets, target, True)


def eager(case: Case, sets: Sequence[list[np.ndarray]], target: str) -> Prepared:
    """PyTorch without compiling."""
    return _torch(case, sets, target, False)


def xla(case: Case, sets: Sequence[list[np.ndarray]], target: str) -> Prepared:
    """JAX with jit."""
    jax = importlib.import_module("jax")
    function = jax.jit(_peers.jax_function(case.name, case.sizes))
    device = jax.devices("gpu" if target == "cuda" else "cpu")[0]
    return Prepared(
        lambda *args: jax.block_until_ready(function(*args)),
        [[jax.device_put(x, device) for x in s] for s in sets],
        np.asarray,
    )


MAKERS: dict[str, Make] = {
    "stitched": stitched,
    "stock": stock,
    "inductor": inductor,
    "eager": eager,
    "xla": xla,
}


def copy_of(nbytes: int) -> Contender:
    """Return a device-to-device copy that moves ``nbytes`` in all, half read and half written."""
    import torch

    source = torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda").random_()
    sink = torch.empty_like(source)
    return lambda: sink.copy_(source)
