# SPDX-License-Identifier: Apache-2.0
"""The emulated device's functions for host code: to launch kernels, and to query the device."""

from __future__ import annotations

import ctypes
import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .launch import ArrayArgument, EmulatedRun, KernelModule, Launch, Options, check_written
from .memory import DeviceBuffer, copy_bytes, owns
from .tensors import CUDA, address_of, dtype_of, itemsize_of, nbytes_of, shape_of

PREFIX = "cuda_emulator_"
"""Prefix of kernels' names. Kernels are looked up among all global functions, and the prefix avoids collisions."""
ALLOC_WORKSPACE = "cuda_emulator.alloc_workspace"
"""The function that gives host code memory for a buffer between its kernels: bytes, and bytes of an element."""

_AXES = {"x": 0, "y": 1, "z": 2}
_EXISTS, _THREADS, _WARP, _MULTIPROCESSORS = 0, 1, 2, 7  # DeviceAttrKind
_COOPERATIVE = "tirx.use_cooperative_launch"
_DEPENDENT = "tirx.use_programtic_dependent_launch"
_FLAGS = (_COOPERATIVE, _DEPENDENT)  # launch parameters without a value
_DYNAMIC_SHARED = ("tirx.use_dyn_shared_memory", "tir.use_dyn_shared_memory")


class DeviceCalls:
    """The emulated device as the host code of one run sees it: its launches and findings.

    Attributes:
        sources: the CUDA C of each device module.
        kernels: for each kernel (with PREFIX, if the run needs it) the meaning of its launch arguments, which follow
            the kernel's own arguments.
        extra_blocks: for a kernel, clusters to launch beyond those of the host code.
    """

    def __init__(
        self,
        sources: Sequence[str],
        kernels: Mapping[str, tuple[str, ...]],
        options: Options,
        rewritable: Sequence[str],
        extra_blocks: Mapping[str, int] | None = None,
    ) -> None:
        self.launch_parameters = kernels
        self.options = options
        self.rewritable = rewritable
        self.extra_blocks = extra_blocks or {}
        self.run = EmulatedRun()
        self.aborted = False  # by a launch that was given up
        modules = [KernelModule(source) for source in sources] if kernels else []
        self.modules = {name: module for module in modules for name in module.prepared.kernels}
        self.inputs: set[int] = set()  # addresses that kernels are to leave alone or may rewrite
        self.tensors: dict[
            int, tuple[int, int]
        ] = {}  # arguments of the running PrimFunc: address -> bytes, item
        self.scratch: set[int] = set()  # those of them that are workspace
        self.workspaces: list[DeviceBuffer] = []  # memory that host code took for its buffers
        self.producer: dict[int, tuple[str, str]] = {}  # address -> kernel and parameter that last took it

    def alloc_workspace(self, nbytes: int, itemsize: int) -> ctypes.c_void_p:
        """Return empty device memory for the running PrimFunc."""
        buffer = DeviceBuffer(int(nbytes), int(itemsize), self.options.poison)
        self.workspaces.append(buffer)
        self.scratch.add(buffer.address)
        self.tensors[buffer.address] = (int(nbytes), int(itemsize))
        return ctypes.c_void_p(buffer.address)

    def abort(self, message: str) -> RuntimeError:
        """Return the exception to raise if the run cannot go on because of a reported fault."""
        self.aborted = True
        return RuntimeError(message)

    def launch(self, kernel: str, *args: Any) -> None:
        """Run one kernel. ``args`` are its own arguments, then those of the launch."""
        params = self.launch_parameters[kernel]
        name = kernel.removeprefix(PREFIX)
        module = self.modules[name]
        valued = [p for p in params if p not in _FLAGS]
        own, extents = args[: len(args) - len(valued)], args[len(args) - len(valued) :]
        launch = _read_launch(name, params, dict(zip(valued, (int(e) for e in extents), strict=True)))
        if (
            name in module.prepared.resident
        ):  # its blocks wait for each other: the device must hold all of them
            launch = dataclasses.replace(launch, cooperative=True)
        if more := self.extra_blocks.get(kernel, 0):
            grid = (launch.grid[0] + more * launch.cluster[0], *launch.grid[1:])
            launch = dataclasses.replace(launch, grid=grid)
        names = [n.removesuffix("_ptr") for n in module.prepared.kernels[name]]
        arguments: list[Any] = []
        for arg, param in zip(own, names, strict=True):
            if not isinstance(arg, ctypes.c_void_p):
                arguments.append(arg)
                continue
            address = int(arg.value or 0)
            if address not in self.tensors:
                raise NotImplementedError(
                    f"{name}: {param} is a workspace of the host code, which the emulator lacks"
                )
            nbytes, itemsize = self.tensors[address]
            rewritable = address in self.inputs or address in self.scratch
            rewritable |= any(fnmatch.fnmatch(param, p) for p in self.rewritable)
            arguments.append(ArrayArgument(address, nbytes, itemsize, output=not rewritable))
            self.producer[address] = (name, param)
        self.run.launches.append(launch)
        finished, reports = module.launch(launch, arguments, self.options)
        self.run.reports.extend(reports)
        if not finished:
            raise self.abort(f"{name} was given up")

    def collect_tensor(self, result: Any) -> None:
        """Copy an output to the host. Elements never written are a finding."""
        shape, dtype = shape_of(result), dtype_of(result)
        nbytes, address = nbytes_of(result), address_of(result)
        data = copy_bytes(address, nbytes)
        self.run.outputs.append(data.view(numpy_dtype(dtype)).reshape(shape))
        if owns(address):
            kernel, name = self.producer.get(address, ("", f"output {len(self.run.outputs) - 1}"))
            self.run.reports.extend(check_written(address, nbytes, itemsize_of(dtype), kernel, name))

    def device_attribute(self, device_type: int, device: int, kind: int) -> int | None:
        """Return an attribute of the emulated device, one of DeviceAttrKind."""
        if (device_type, device) != (CUDA, 0):
            raise ValueError(
                f"host code asks for device {device} of type {device_type}, there is CUDA device 0"
            )
        known = {_EXISTS: 1, _THREADS: 1024, _WARP: 32, _MULTIPROCESSORS: self.options.multiprocessors}
        if kind not in known:
            raise NotImplementedError(f"device attribute {kind} is not known to the emulator")
        return known[kind]


def numpy_dtype(dtype: str) -> np.dtype:
    """Return NumPy's dtype for TVM's name."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _read_launch(name: str, params: Sequence[str], values: dict[str, int]) -> Launch:
    sizes = {"blockIdx": [1, 1, 1], "threadIdx": [1, 1, 1], "clusterCtaIdx": [1, 1, 1]}
    shared = 0
    for param, value in values.items():
        kind, _, axis = param.partition(".")
        if kind in sizes:
            sizes[kind][_AXES[axis]] = value or 1  # TVM's runtime launches no empty grid
        elif param in _DYNAMIC_SHARED:
            shared = value
        else:
            raise NotImplementedError(f"{name}: launch parameter {param} is not known to the emulator")
    grid, block, cluster = (tuple(sizes[k]) for k in ("blockIdx", "threadIdx", "clusterCtaIdx"))
    return Launch(name, grid, block, shared, cluster, _COOPERATIVE in params, _DEPENDENT in params)  # type: ignore[arg-type]
