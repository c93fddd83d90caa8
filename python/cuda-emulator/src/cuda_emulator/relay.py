# SPDX-License-Identifier: Apache-2.0
"""Run a Relay module built for CUDA: kernels in the emulator, host code as compiled by llvm, graphs node by node."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from .calls import ALLOC_WORKSPACE, DeviceCalls
from .global_function import registered
from .launch import EmulatedRun, Options
from .memory import DeviceBuffer
from .relay_lowering import Build, RelayLowered, lower_prim_func, lower_relay
from .tensors import address_of, device_tensor, itemsize_of, nbytes_of

_NOP = "__nop"
_COPY = "__copy"


class _Session(DeviceCalls):
    """One run of a graph or a PrimFunc: its memory, launches and findings."""

    def __init__(self, lowered: RelayLowered, options: Options, rewritable: Sequence[str]) -> None:
        super().__init__(lowered.sources, lowered.kernels, options, rewritable, lowered.extra_blocks)
        self.lowered = lowered
        self.buffers: dict[int, DeviceBuffer] = {}  # by address

    def new_input(self, array: np.ndarray, shape: Sequence[int], dtype: str) -> Any:
        """Return a device copy of a host array."""
        buffer = DeviceBuffer.of(array)
        self.inputs.add(buffer.address)
        return self._tensor(buffer, shape, dtype)

    def new_output(self, shape: Sequence[int], dtype: str) -> Any:
        """Return a tensor in new memory that nobody wrote."""
        itemsize = itemsize_of(dtype)
        return self._tensor(
            DeviceBuffer(int(np.prod(shape)) * itemsize, itemsize, self.options.poison), shape, dtype
        )

    def view(self, tensor: Any, shape: Sequence[int], dtype: str) -> Any:
        """Return a tensor of another shape or dtype over a tensor's memory."""
        return device_tensor(self.buffers[address_of(tensor)], shape, dtype)

    def _tensor(self, buffer: DeviceBuffer, shape: Sequence[int], dtype: str) -> Any:
        self.buffers[buffer.address] = buffer
        return device_tensor(buffer, shape, dtype)

    def call(self, name: str, tensors: Sequence[Any]) -> None:
        """Run the host code of a PrimFunc."""
        host = next((h for h in self.lowered.hosts if h.implements_function(name)), None)
        if host is None:
            raise NotImplementedError(
                f"{name} is no function of the library: the emulator runs TVM's own kernels only"
            )
        self.tensors = {address_of(t): (nbytes_of(t), itemsize_of(str(t.dtype))) for t in tensors}
        self.scratch, self.workspaces = set(), []  # of the PrimFunc that runs
        host[name](*tensors)


_sessions: list[_Session] = []
_turn = threading.RLock()  # kernels are global functions by name: one thread runs at a time


@contextmanager
def _installed(session: _Session) -> Iterator[None]:
    """Make the session's kernels global functions, and let host code select and query a device that is not there."""
    functions = {
        "__tvm_set_device": lambda *_: None,
        "runtime.GetDeviceAttr": lambda *args: _sessions[-1].device_attribute(*map(int, args)),
        ALLOC_WORKSPACE: lambda *args: _sessions[-1].alloc_workspace(*args),
        **{k: lambda *args, k=k: _sessions[-1].launch(k, *args) for k in session.lowered.kernels},
    }
    with ExitStack() as installed:
        installed.enter_context(_turn)
        for name, function in functions.items():
            installed.enter_context(registered(name, function))
        _sessions.append(session)
        try:
            yield
        finally:
            _sessions.pop()


def run_relay_cuda(
    mod: Any,
    inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    params: Mapping[str, Any] | None = None,
    target: Any = None,
    build: Build | None = None,
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
) -> EmulatedRun:
    """Build a Relay module for CUDA and run it without a GPU.

    After a launch that was given up, the outputs are missing and the reports give the reason.

    Args:
        mod: the module. Its ``main`` has static shapes.
        inputs: NumPy arrays (ml_dtypes.bfloat16 for bfloat16), by name, or in the order of ``main``'s parameters
            without those in ``params``.
        params: constants, as for ``relay.build``.
        target: the target (default: sm_90 with an llvm host).
        build: called instead of ``relay.build``, with module, target and params.
        seed: 0 runs blocks and threads in their natural order, any other value in an order drawn from it.
        poison: memory that nobody wrote holds NaN.
        rewritable: patterns of names of kernel parameters whose elements may be rewritten (workspaces always may).
        options: other options. Its seed and poison are not used.

    Raises:
        ValueError: for missing or unknown inputs, inputs of another size than the graph's, or a library with external
            functions.
    """
    lowered = lower_relay(mod, target, params, build)
    return run_relay_lowered(lowered, inputs, seed, poison, rewritable, options)


def run_relay_lowered(
    lowered: RelayLowered,
    inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
) -> EmulatedRun:
    """Run :func:`run_relay_cuda` on a module that was lowered before. Every tensor of the graph has separate
    memory.
    """
    assert lowered.graph is not None, "a PrimFunc is run by run_prim_func"
    named = _named(lowered, inputs)
    with _running(lowered, seed, poison, rewritable, options) as session:
        graph = lowered.graph
        shapes, dtypes = graph["attrs"]["shape"][1], graph["attrs"]["dltype"][1]
        entries: dict[int, Any] = {}
        for number, node in enumerate(graph["nodes"]):
            first = graph["node_row_ptr"][number]
            if node["op"] == "null":
                array = (
                    lowered.params[node["name"]] if node["name"] in lowered.params else named[node["name"]]
                )
                entries[first] = session.new_input(
                    _sized(array, shapes[first], dtypes[first], node["name"]), shapes[first], dtypes[first]
                )
                continue
            name = node["attrs"]["func_name"]
            args = [entries[graph["node_row_ptr"][n] + index] for n, index, *_ in node["inputs"]]
            if name in (_NOP, _COPY):
                entries[first] = session.view(args[0], shapes[first], dtypes[first])
                continue
            results = range(first, first + int(node["attrs"]["num_outputs"]))
            entries.update((e, session.new_output(shapes[e], dtypes[e])) for e in results)
            session.call(name, [*args, *(entries[e] for e in results)])
        for n, index, *_ in graph["heads"]:
            session.collect_tensor(entries[graph["node_row_ptr"][n] + index])
    return session.run


def run_prim_func(
    func: Any,
    inputs: Sequence[np.ndarray],
    target: Any = None,
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
) -> EmulatedRun:
    """Build a scheduled PrimFunc for CUDA and run it. Parameters after the inputs are outputs, of static shapes."""
    return run_lowered_prim_func(
        lower_prim_func(func, target), func, inputs, seed, poison, rewritable, options
    )


def run_lowered_prim_func(
    lowered: RelayLowered,
    func: Any,
    inputs: Sequence[np.ndarray],
    seed: int = 0,
    poison: bool = True,
    rewritable: Sequence[str] = (),
    options: Options | None = None,
) -> EmulatedRun:
    """Run :func:`run_prim_func` on a function that was lowered before."""
    buffers = [func.buffer_map[p] for p in func.params]
    with _running(lowered, seed, poison, rewritable, options) as session:
        tensors = []
        for i, buffer in enumerate(buffers):
            shape, dtype = [int(e) for e in buffer.shape], str(buffer.dtype)
            if i < len(inputs):
                tensors.append(session.new_input(_sized(inputs[i], shape, dtype, buffer.name), shape, dtype))
            else:
                tensors.append(session.new_output(shape, dtype))
        session.call("main", tensors)
        for tensor in tensors[len(inputs) :]:
            session.collect_tensor(tensor)
    return session.run


@contextmanager
def _running(
    lowered: RelayLowered, seed: int, poison: bool, rewritable: Sequence[str], options: Options | None
) -> Iterator[_Session]:
    """Provide a session in which a reported fault ends the run, without outputs."""
    base = options or Options()
    session = _Session(lowered, Options(**{**base.__dict__, "seed": seed, "poison": poison}), rewritable)
    with _installed(session):
        try:
            yield session
        except Exception:
            if not session.aborted:
                raise
            session.run.outputs.clear()


def _named(
    lowered: RelayLowered, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(lowered.inputs):
            raise ValueError(f"{len(lowered.inputs)} inputs ({', '.join(lowered.inputs)}), not {len(inputs)}")
        inputs = dict(zip(lowered.inputs, inputs))
    if set(inputs) != set(lowered.inputs):
        raise ValueError(f"the inputs are {', '.join(lowered.inputs)}, not {', '.join(inputs)}")
    return dict(inputs)


def _sized(array: np.ndarray, shape: Sequence[int], dtype: str, name: str) -> np.ndarray:
    array = np.asarray(array)
    if array.size != int(np.prod(shape)) or array.itemsize != itemsize_of(dtype):
        raise ValueError(
            f"{name} is {dtype} of shape {tuple(shape)}, not {array.dtype} of shape {array.shape}"
        )
    return array
