# SPDX-License-Identifier: Apache-2.0
"""Run a whole Relax function compiled for CUDA: kernels in the emulator, everything else in TVM."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from . import lowering
from .calls import ALLOC_WORKSPACE, PREFIX, DeviceCalls, numpy_dtype
from .launch import EmulatedRun, Options
from .lowering import Lowered, default_target, lower
from .memory import POISON, DeviceBuffer, copy_bytes, mark, owns
from .reports import Report
from .tensors import address_of, device_tensor, dtype_of, itemsize_of, nbytes_of, shape_of


class _Session(DeviceCalls):
    """One call of a Relax function: its memory, launches and findings."""

    def __init__(self, lowered: Lowered, options: Options, rewritable: Sequence[str]) -> None:
        super().__init__([lowered.source], lowered.kernels, options, rewritable, lowered.extra_blocks)
        self.lowered = lowered
        self.buffers: dict[int, DeviceBuffer] = {}  # by address: storage that tensors are cut from
        self.copies: dict[tuple[int, str, tuple[int, ...]], tuple[Any, tvm.runtime.Tensor]] = {}
        """Constants by address, dtype and shape, because views share an address: the original and its device copy."""

    def new_input(self, array: np.ndarray, dtype: str, shape: Sequence[int]) -> tvm.runtime.Tensor:
        """Return a device copy of a host array."""
        buffer = DeviceBuffer.of(array)
        self.buffers[buffer.address] = buffer
        self.inputs.add(buffer.address)
        return device_tensor(buffer, shape, dtype)

    def alloc_storage(self, shape: Any) -> tvm.runtime.Tensor:
        """Return memory for tensors, in bytes."""
        nbytes = int(shape[0])
        buffer = DeviceBuffer(nbytes, 4, self.options.poison)
        self.buffers[buffer.address] = buffer
        return device_tensor(buffer, [nbytes], "uint8")

    def alloc_tensor(
        self, storage: tvm.runtime.Tensor, offset: int, shape: Any, dtype: Any
    ) -> tvm.runtime.Tensor:
        """Return a tensor in a storage. The former contents count as gone."""
        buffer = self.buffers[address_of(storage)]
        tensor = device_tensor(buffer, [int(e) for e in shape], str(dtype), int(offset))
        nbytes = nbytes_of(tensor)
        if int(offset) + nbytes > buffer.nbytes:
            message = f"a tensor of {nbytes} bytes at {offset} in a storage of {buffer.nbytes} bytes"
            self.run.reports.append(Report("out-of-bounds", "", message))
            raise self.abort(message)
        buffer.data[offset : offset + nbytes] = POISON if self.options.poison else 0
        mark(buffer.address + int(offset), nbytes, written=False)
        return tensor

    def on_host(self, function: Any, *args: Any) -> Any:
        """Return the result of a function that reads tensors on the host, as a tensor of the device."""
        given = [
            tvm.runtime.tensor(self._host_array(arg)) if isinstance(arg, tvm.runtime.Tensor) else arg
            for arg in args
        ]
        result = function(*given)
        if not isinstance(result, tvm.runtime.Tensor):
            return result
        return self.new_input(result.numpy(), dtype_of(result), shape_of(result))

    @staticmethod
    def _host_array(tensor: tvm.runtime.Tensor) -> np.ndarray:
        data = copy_bytes(address_of(tensor), nbytes_of(tensor))
        return data.view(numpy_dtype(dtype_of(tensor))).reshape(shape_of(tensor))

    def call(self, name: str, *args: Any) -> Any:
        """Run the host code of a PrimFunc. A function of the host alone, such as a condition's, may have a result."""
        assert self.lowered.host is not None
        function = self.lowered.host[PREFIX + name]
        if name in self.lowered.host_functions:
            return function(*args)
        flat: list[Any] = []
        self.tensors.clear()
        for arg in args:
            if isinstance(arg, tvm.runtime.Tensor):
                tensor = self._on_device(arg)
                self.tensors[address_of(tensor)] = (nbytes_of(tensor), itemsize_of(str(tensor.dtype)))
                flat.append(tensor)
            elif isinstance(arg, tvm_ffi.Shape):
                flat.extend(int(e) for e in arg)
            else:
                flat.append(arg)
        tensors = [arg for arg in flat if isinstance(arg, tvm.runtime.Tensor)]
        first = len(tensors) - self.lowered.workspace.get(name, 0)
        self.scratch = {address_of(tensor) for tensor in tensors[first:]}
        function(*flat)
        return None

    def _on_device(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """Return the tensor itself, or the device copy of a constant."""
        address = address_of(tensor)
        if owns(address):
            return tensor
        dtype, shape = dtype_of(tensor), shape_of(tensor)
        key = address, dtype, shape
        if key not in self.copies:
            copy = self.new_input(copy_bytes(address, nbytes_of(tensor)), dtype, shape)
            self.copies[key] = (tensor, copy)
        return self.copies[key][1]

    def collect(self, result: Any) -> None:
        """Copy the outputs to the host. Elements never written are a finding."""
        if isinstance(result, tvm.runtime.Tensor):
            self.collect_tensor(result)
        elif isinstance(result, tvm_ffi.Shape):
            self.run.outputs.append(np.array([int(e) for e in result], np.int64))
        elif isinstance(result, (list, tuple, tvm_ffi.Array)):
            for part in result:
                self.collect(part)
        elif result is not None:
            self.run.outputs.append(np.asarray(result))


ON_HOST = ("relax.run.nonzero", "relax.run.unique", "vm.builtin.read_if_cond", "vm.builtin.tensor_to_shape")
"""TVM's functions that copy tensors to the host, and those of their results that are tensors to the device."""

_sessions: list[_Session] = []
_turn = threading.RLock()  # kernels are global functions by name: one thread runs at a time


@tvm_ffi.register_global_func(lowering.CALL, override=True)
def _call(name: str, *args: Any) -> Any:
    return _sessions[-1].call(str(name), *args)


@tvm_ffi.register_global_func(lowering.ALLOC_STORAGE, override=True)
def _alloc_storage(shape: Any) -> Any:
    return _sessions[-1].alloc_storage(shape)


@tvm_ffi.register_global_func(lowering.ALLOC_TENSOR, override=True)
def _alloc_tensor(storage: Any, offset: int, shape: Any, dtype: Any) -> Any:
    return _sessions[-1].alloc_tensor(storage, offset, shape, dtype)


@tvm_ffi.register_global_func(ALLOC_WORKSPACE, override=True)
def _alloc_workspace(nbytes: int, itemsize: int) -> Any:
    return _sessions[-1].alloc_workspace(nbytes, itemsize)


@contextmanager
def _installed(session: _Session) -> Iterator[None]:
    """Run :func:`_install` in one thread at a time."""
    with _turn, _install(session):
        yield


@contextmanager
def _install(session: _Session) -> Iterator[None]:
    """Make the session's kernels global functions, and let host code select and query a device that is not there."""
    replaced = {
        "__tvm_set_device": lambda *_: None,
        "runtime.GetDeviceAttr": lambda *args: _sessions[-1].device_attribute(*map(int, args)),
    }
    originals = {name: tvm.get_global_func(name) for name in (*replaced, *ON_HOST)}
    replaced |= {name: lambda *args, f=originals[name]: _sessions[-1].on_host(f, *args) for name in ON_HOST}
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
    """Compile a Relax module for CUDA and run one of its functions without a GPU.

    After a launch that was given up, the outputs are missing and the reports give the reason.

    Args:
        mod: the module before lowering.
        inputs: NumPy arrays (ml_dtypes.bfloat16 for bfloat16), numbers, tuples for shapes, lists for tuples.
        target: the target (default: sm_90 with an llvm host).
        func: the function.
        relax_pipeline: the pipeline (default: relax.get_default_pipeline(target)).
        seed: 0 runs blocks and threads in their natural order, any other value in an order drawn from it.
        poison: memory that nobody wrote holds NaN.
        rewritable: patterns of names of kernel parameters whose elements may be rewritten (workspace always may).
        options: other options. Its seed and poison are not used.
        tir_pipeline: as in tvm.compile.
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
    """Run :func:`run_cuda` on a module that was lowered before, for example at several sizes."""
    base = options or Options()
    merged = Options(**{**base.__dict__, "seed": seed, "poison": poison})
    session = _Session(lowered, merged, rewritable)
    with _installed(session):
        machine = relax.VirtualMachine(lowered.executable, tvm.cpu())
        try:
            session.collect(machine[func](*(_convert(session, value) for value in inputs)))
        except Exception:
            # The type of a callback's exception is lost on its way through the virtual machine.
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
