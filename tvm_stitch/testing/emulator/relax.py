# SPDX-License-Identifier: Apache-2.0
"""Runs a whole Relax function compiled for CUDA: kernels in the emulator, everything else as TVM runs it."""

from __future__ import annotations

import ctypes
import dataclasses
import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from . import lowering
from .launch import ArrayArgument, EmulatedRun, KernelModule, Launch, Options, check_written
from .lowering import PREFIX, Lowered, default_target, lower
from .memory import POISON, DeviceBuffer, copy_bytes, mark, owns
from .reports import Report
from .tensors import CUDA, device_tensor, itemsize_of, nbytes_of

_AXES = {"x": 0, "y": 1, "z": 2}
_COOPERATIVE = "tirx.use_cooperative_launch"
_EXISTS, _THREADS, _WARP, _MULTIPROCESSORS = 0, 1, 2, 7  # DeviceAttrKind
_FLAGS = (_COOPERATIVE, "tirx.use_programtic_dependent_launch")  # launch parameters without a value


class _Session:
    """One call of a Relax function: its memory, launches and findings."""

    def __init__(self, lowered: Lowered, options: Options, rewritable: Sequence[str]) -> None:
        self.lowered = lowered
        self.options = options
        self.rewritable = rewritable
        self.run = EmulatedRun()
        self.aborted = False  # by a launch that was given up
        self.kernels = KernelModule(lowered.source) if lowered.kernels else None
        self.buffers: dict[int, DeviceBuffer] = {}  # by address; storage that tensors are cut from
        self.copies: dict[
            int, tuple[Any, tvm.runtime.Tensor]
        ] = {}  # constants: the original and its device copy
        self.inputs: set[int] = set()  # addresses that kernels are to leave alone or may rewrite
        self.tensors: dict[
            int, tuple[int, int]
        ] = {}  # arguments of the running PrimFunc: address -> bytes, item
        self.scratch: set[int] = set()  # those of them that are workspace
        self.producer: dict[int, tuple[str, str]] = {}  # address -> kernel and parameter that last took it

    def _abort(self, message: str) -> RuntimeError:
        self.aborted = True
        return RuntimeError(message)

    def new_input(self, array: np.ndarray, dtype: str, shape: Sequence[int]) -> tvm.runtime.Tensor:
        """A device copy of a host array."""
        buffer = DeviceBuffer.of(array)
        self.buffers[buffer.address] = buffer
        self.inputs.add(buffer.address)
        return device_tensor(buffer, shape, dtype)

    def alloc_storage(self, shape: Any) -> tvm.runtime.Tensor:
        """Memory for tensors, in bytes."""
        nbytes = int(shape[0])
        buffer = DeviceBuffer(nbytes, 4, self.options.poison)
        self.buffers[buffer.address] = buffer
        return device_tensor(buffer, [nbytes], "uint8")

    def alloc_tensor(
        self, storage: tvm.runtime.Tensor, offset: int, shape: Any, dtype: Any
    ) -> tvm.runtime.Tensor:
        """A tensor in a storage; what was there before counts as gone."""
        buffer = self.buffers[_address(storage)]
        tensor = device_tensor(buffer, [int(e) for e in shape], str(dtype), int(offset))
        nbytes = nbytes_of(tensor)
        if int(offset) + nbytes > buffer.nbytes:
            message = f"a tensor of {nbytes} bytes at {offset} in a storage of {buffer.nbytes} bytes"
            self.run.reports.append(Report("out-of-bounds", "", message))
            raise self._abort(message)
        buffer.data[offset : offset + nbytes] = POISON if self.options.poison else 0
        mark(buffer.address + int(offset), nbytes, written=False)
        return tensor

    def call(self, name: str, *args: Any) -> None:
        """Runs the host code of a PrimFunc."""
        assert self.lowered.host is not None
        function = self.lowered.host[PREFIX + name]
        if name in self.lowered.host_functions:
            function(*args)
            return
        flat: list[Any] = []
        self.tensors.clear()
        for arg in args:
            if isinstance(arg, tvm.runtime.Tensor):
                tensor = self._on_device(arg)
                self.tensors[_address(tensor)] = (nbytes_of(tensor), itemsize_of(str(tensor.dtype)))
                flat.append(tensor)
            elif isinstance(arg, tvm_ffi.Shape):
                flat.extend(int(e) for e in arg)
            else:
                flat.append(arg)
        tensors = [arg for arg in flat if isinstance(arg, tvm.runtime.Tensor)]
        first = len(tensors) - self.lowered.workspace.get(name, 0)
        self.scratch = {_address(tensor) for tensor in tensors[first:]}
        try:
            function(*flat)
        except tvm.error.InternalError as error:
            if "Device API cuda is not enabled" not in str(error):
                raise
            message = f"{name}: its host code allocates device memory of its own, which the emulator lacks"
            raise NotImplementedError(message) from error

    def _on_device(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """The tensor itself, or the device copy of a constant."""
        address = _address(tensor)
        if owns(address):
            return tensor
        if address not in self.copies:
            copy = self.new_input(
                copy_bytes(address, nbytes_of(tensor)), str(tensor.dtype), [int(e) for e in tensor.shape]
            )
            self.copies[address] = (tensor, copy)
        return self.copies[address][1]

    def launch(self, kernel: str, *args: Any) -> None:
        """Runs one kernel; `args` are its own arguments, then those of the launch."""
        assert self.kernels is not None
        params = self.lowered.kernels[kernel]
        name = kernel.removeprefix(PREFIX)
        valued = [p for p in params if p not in _FLAGS]
        own, extents = args[: len(args) - len(valued)], args[len(args) - len(valued) :]
        launch = _read_launch(name, params, dict(zip(valued, (int(e) for e in extents), strict=True)))
        if more := self.lowered.extra_blocks.get(kernel, 0):
            grid = (launch.grid[0] + more * launch.cluster[0], *launch.grid[1:])
            launch = dataclasses.replace(launch, grid=grid)
        names = [n.removesuffix("_ptr") for n in self.kernels.prepared.kernels[name]]
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
        finished, reports = self.kernels.launch(launch, arguments, self.options)
        self.run.reports.extend(reports)
        if not finished:
            raise self._abort(f"{name} was given up")

    def collect(self, result: Any) -> None:
        """Copies the outputs to the host; those never written are a finding."""
        if isinstance(result, tvm.runtime.Tensor):
            shape, dtype = tuple(int(e) for e in result.shape), str(result.dtype)
            nbytes, address = nbytes_of(result), _address(result)
            data = copy_bytes(address, nbytes)
            self.run.outputs.append(data.view(_numpy_dtype(dtype)).reshape(shape))
            if owns(address):
                kernel, name = self.producer.get(address, ("", f"output {len(self.run.outputs) - 1}"))
                self.run.reports.extend(check_written(address, nbytes, itemsize_of(dtype), kernel, name))
        elif isinstance(result, tvm_ffi.Shape):
            self.run.outputs.append(np.array([int(e) for e in result], np.int64))
        elif isinstance(result, (list, tuple, tvm_ffi.Array)):
            for part in result:
                self.collect(part)
        elif result is not None:
            self.run.outputs.append(np.asarray(result))

    def device_attribute(self, device_type: int, device: int, kind: int) -> int | None:
        """What host code asks of the emulated device, one of DeviceAttrKind."""
        if (device_type, device) != (CUDA, 0):
            raise ValueError(
                f"host code asks for device {device} of type {device_type}, there is CUDA device 0"
            )
        known = {_EXISTS: 1, _THREADS: 1024, _WARP: 32, _MULTIPROCESSORS: self.options.multiprocessors}
        if kind not in known:
            raise NotImplementedError(f"device attribute {kind} is not known to the emulator")
        return known[kind]


_sessions: list[_Session] = []


@tvm_ffi.register_global_func(lowering.CALL, override=True)
def _call(name: str, *args: Any) -> None:
    _sessions[-1].call(str(name), *args)


@tvm_ffi.register_global_func(lowering.ALLOC_STORAGE, override=True)
def _alloc_storage(shape: Any) -> Any:
    return _sessions[-1].alloc_storage(shape)


@tvm_ffi.register_global_func(lowering.ALLOC_TENSOR, override=True)
def _alloc_tensor(storage: Any, offset: int, shape: Any, dtype: Any) -> Any:
    return _sessions[-1].alloc_tensor(storage, offset, shape, dtype)


def _address(tensor: tvm.runtime.Tensor) -> int:
    pointer = tensor.data_ptr
    return int(pointer() if callable(pointer) else pointer)


def _numpy_dtype(dtype: str) -> np.dtype:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _read_launch(name: str, params: Sequence[str], values: dict[str, int]) -> Launch:
    sizes = {"blockIdx": [1, 1, 1], "threadIdx": [1, 1, 1], "clusterCtaIdx": [1, 1, 1]}
    for param, value in values.items():
        kind, _, axis = param.partition(".")
        if kind in sizes:
            sizes[kind][_AXES[axis]] = value
        elif param != "tirx.use_dyn_shared_memory":
            raise NotImplementedError(f"{name}: launch parameter {param} is not known to the emulator")
    grid, block, cluster = (tuple(sizes[k]) for k in ("blockIdx", "threadIdx", "clusterCtaIdx"))
    shared = values.get("tirx.use_dyn_shared_memory", 0)
    return Launch(name, grid, block, shared, cluster, _COOPERATIVE in params)  # type: ignore[arg-type]


@contextmanager
def _installed(session: _Session) -> Iterator[None]:
    """Makes the session's kernels global functions, and lets host code choose and ask a device that is not there."""
    replaced = {
        "__tvm_set_device": lambda *_: None,
        "runtime.GetDeviceAttr": lambda *args: _sessions[-1].device_attribute(*map(int, args)),
    }
    originals = {name: tvm.get_global_func(name) for name in replaced}
    names = list(session.lowered.kernels)
    for kernel in names:
        tvm_ffi.register_global_func(
            kernel, lambda *args, k=kernel: _sessions[-1].launch(k, *args), override=True
        )
    for name, function in replaced.items():
        tvm_ffi.register_global_func(name, function, override=True)
    _sessions.append(session)
    try:
        yield
    finally:
        _sessions.pop()
        for name, function in originals.items():
            tvm_ffi.register_global_func(name, function, override=True)
        for kernel in names:
            tvm_ffi.registry.remove_global_func(kernel)


def run_cuda(
    mod: tvm.IRModule,
    inputs: Sequence[Any],
    target: tvm.target.Target | None = None,
    func: str = "main",
    relax_pipeline: tvm.transform.Pass | None = None,
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
    tir_pipeline: str | None = None,
) -> EmulatedRun:
    """Compiles a Relax module for CUDA and runs one of its functions without a GPU.

    mod: the module before lowering.
    inputs: numpy arrays (ml_dtypes.bfloat16 for bfloat16), numbers, tuples for shapes, lists for tuples.
    target: default sm_90 with an llvm host; relax_pipeline: default relax.get_default_pipeline(target);
    tir_pipeline: as in tvm.compile.
    seed: 0 runs blocks and threads in their natural order, any other value in an order drawn from it.
    poison: memory that nobody wrote holds NaN.
    rewritable: patterns of names of kernel parameters whose elements may be rewritten (workspace always may).
    options: the rest; its seed and poison are not used.
    After a launch that was given up the outputs are missing and the reports say why.
    """
    return run_lowered(
        lower(mod, target or default_target(), relax_pipeline, tir_pipeline),
        inputs,
        func,
        seed,
        poison,
        rewritable,
        options,
    )


def run_lowered(
    lowered: Lowered,
    inputs: Sequence[Any],
    func: str = "main",
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
) -> EmulatedRun:
    """run_cuda for a module that was lowered before, to run it at several sizes."""
    base = options or Options()
    merged = Options(**{**base.__dict__, "seed": seed, "poison": poison})
    session = _Session(lowered, merged, rewritable)
    with _installed(session):
        machine = relax.VirtualMachine(lowered.executable, tvm.cpu())
        try:
            session.collect(machine[func](*(_convert(session, value) for value in inputs)))
        except Exception:
            # The type of what a callback raises is lost on its way through the virtual machine.
            if not session.aborted:
                raise
            session.run.outputs.clear()
    return session.run


def _convert(session: _Session, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return session.new_input(value, str(value.dtype), value.shape)
    if isinstance(value, np.generic):
        return session.new_input(np.asarray(value), str(value.dtype), ())
    if isinstance(value, tuple):
        return tvm_ffi.Shape([int(e) for e in value])
    if isinstance(value, list):
        return [_convert(session, part) for part in value]
    return value
