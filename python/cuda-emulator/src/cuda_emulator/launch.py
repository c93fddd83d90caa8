# SPDX-License-Identifier: Apache-2.0
"""Launch one compiled kernel in the emulator."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .build import load_kernels, load_runtime
from .memory import DeviceBuffer, unwritten
from .reports import Report, ReportRecord
from .source import PreparedSource, prepare_source

Extent = tuple[int, int, int]
# Threads times characters of a kernel's text beyond which "auto" optimises. It means a second at -O0, more with
# loops.
_LARGE = 100_000_000


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's name, (x, y, z) of grid, block and cluster, dynamic shared memory in bytes.

    ``dependent``: it begins while the kernel in front ends (programmatic dependent launch).
    """

    name: str
    grid: Extent
    block: Extent
    shared_bytes: int = 0
    cluster: Extent = (1, 1, 1)
    cooperative: bool = False
    dependent: bool = False


@dataclass
class EmulatedRun:
    """The result of a run: the outputs on the host, every launch in order, and all findings."""

    outputs: list[np.ndarray] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def check(self) -> EmulatedRun:
        """Return the run itself, or raise an AssertionError that lists the findings if there are any."""
        if self.reports:
            shown = "\n".join(str(r) for r in self.reports[:20])
            raise AssertionError(f"the emulator found {len(self.reports)} faults:\n{shown}")
        return self


@dataclass(frozen=True)
class Options:
    """Options of running kernels.

    Attributes:
        seed: 0 runs blocks and threads in their natural order, any other value in an order drawn from it.
        poison: fill memory that nobody wrote with 0xFF bytes (NaN), else with zeros.
        strict_rewrite: also report a thread that writes an output element twice. Also report a value of scratch that
            is overwritten before anyone read it, as if two live buffers share memory.
        strict_shuffle: also report __shfl_up/down_sync from an inactive lane (trees read it, and drop the value).
        volatile_sync: lanes of a warp access volatile memory in lock step, which older kernels rely on.
        max_accesses, max_seconds: memory accesses and CPU seconds after which a launch is given up.
        resident_blocks: number of blocks of a kernel that the device holds at once, or a function of the launch. A
            larger cooperative launch is rejected and reported, as by a driver. None: no such limit.
        multiprocessors: number of the device's multiprocessors for host code.
        opt_level: optimisation level of the C++ compiler for kernels. "-O0" compiles fastest and drops no access.
            "-O1" runs large launches three times as fast, but drops stores that the same thread overwrites. "auto"
            takes "-O1" for large launches only.
    """

    seed: int = 0
    poison: bool = True
    strict_rewrite: bool = False
    strict_shuffle: bool = False
    volatile_sync: bool = True
    max_accesses: int = 4_000_000_000
    max_seconds: float = 300.0
    resident_blocks: int | Callable[[Launch], int] | None = None
    multiprocessors: int = 132
    opt_level: str = "auto"


@dataclass(frozen=True)
class ArrayArgument:
    """A pointer: its address, the bytes behind it, bytes of an element, whether it is an output."""

    address: int
    nbytes: int
    itemsize: int
    output: bool = False


class _Request(ctypes.Structure):
    """Mirror of LaunchRequest in runtime/schedule.cc."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("budget", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("flags", ctypes.c_uint32),
        ("n_arrays", ctypes.c_uint32),
        ("addresses", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("itemsizes", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
    ]


class KernelModule:
    """The kernels of one CUDA source, compiled for the emulator."""

    def __init__(self, cuda_source: str) -> None:
        self.prepared: PreparedSource = prepare_source(cuda_source)
        self._libs: dict[str, ctypes.CDLL] = {}

    def _library(self, opt_level: str) -> ctypes.CDLL:
        if opt_level not in self._libs:
            self._libs[opt_level] = load_kernels(self.prepared.text, opt_level)
        return self._libs[opt_level]

    def _opt_level(self, launch: Launch, options: Options) -> str:
        if options.opt_level != "auto":
            return options.opt_level
        if options.strict_rewrite:
            return "-O0"
        threads = math.prod(launch.grid) * math.prod(launch.block)
        return "-O1" if threads * self.prepared.lengths[launch.name] > _LARGE else "-O0"

    def parameters(self, name: str, opt_level: str = "-O0") -> list[tuple[str, str, int]]:
        """Return (name, kind, size) of each parameter. The kind is 'p', 'i', 'u', 'f', 'h' or 'b', the size in
        bytes.

        The size of a pointer is that of its target.

        Raises:
            KeyError: if there is no such kernel.
        """
        names = self.prepared.kernels[name]
        kinds = ctypes.create_string_buffer(len(names) + 1)
        sizes = (ctypes.c_uint32 * (len(names) + 1))()
        count = getattr(self._library(opt_level), f"emu_signature_{name}")(kinds, sizes)
        if count != len(names):
            raise ValueError(f"the parameters of {name} were not understood")
        return [(n, chr(kinds.raw[i]), sizes[i]) for i, n in enumerate(names)]

    def launch(
        self,
        launch: Launch,
        args: Sequence[ArrayArgument | int | float | bool | np.generic],
        options: Options,
    ) -> tuple[bool, list[Report]]:
        """Run one launch. Return whether all threads ended, and the findings.

        Raises:
            TypeError: on wrong arguments.
        """
        runtime, _ = load_runtime()
        if refused := _too_large(launch, options):
            return False, [refused]
        opt_level = self._opt_level(launch, options)
        parameters = self.parameters(launch.name, opt_level)
        if len(parameters) != len(args):
            raise TypeError(f"{launch.name} takes {len(parameters)} arguments, got {len(args)}")
        cells = (ctypes.c_uint64 * max(len(args), 1))()
        pointers = (ctypes.c_void_p * max(len(args), 1))()
        arrays: list[tuple[ArrayArgument, str]] = []
        for i, (value, (name, kind, size)) in enumerate(zip(args, parameters, strict=True)):
            pointers[i] = ctypes.addressof(cells) + 8 * i
            if isinstance(value, ArrayArgument) != (kind == "p"):
                raise TypeError(f"argument {i} ({name}) of {launch.name} does not match its parameter")
            if isinstance(value, ArrayArgument):
                cells[i] = value.address
                arrays.append((value, name))
            else:
                cells[i] = _scalar_bits(value, kind, size)
        n = max(len(arrays), 1)
        addresses = (ctypes.c_uint64 * n)(*(a.address for a, _ in arrays))
        sizes = (ctypes.c_uint64 * n)(*(a.nbytes for a, _ in arrays))
        itemsizes = (ctypes.c_uint32 * n)(*(max(a.itemsize, 1) for a, _ in arrays))
        outputs = (ctypes.c_uint32 * n)(*(int(a.output) for a, _ in arrays))
        names = (ctypes.c_char_p * n)(*(name.removesuffix("_ptr").encode() for _, name in arrays))
        flags = (
            options.strict_rewrite
            | options.volatile_sync << 1
            | options.strict_shuffle << 2
            | options.poison << 3
            | launch.dependent << 4
        )
        request = _Request(
            entry=ctypes.cast(getattr(self._library(opt_level), f"emu_entry_{launch.name}"), ctypes.c_void_p),
            args=ctypes.addressof(pointers),
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            cooperative=launch.cooperative,
            dynamic_shared=launch.shared_bytes,
            seed=options.seed,
            budget=options.max_accesses,
            seconds=options.max_seconds,
            flags=flags,
            n_arrays=len(arrays),
            addresses=ctypes.addressof(addresses),
            sizes=ctypes.addressof(sizes),
            itemsizes=ctypes.addressof(itemsizes),
            outputs=ctypes.addressof(outputs),
            names=ctypes.addressof(names),
        )
        given_up = runtime.emu_launch(ctypes.byref(request))
        reports = []
        record = ReportRecord()
        for i in range(runtime.emu_report_count()):
            runtime.emu_report_get(i, ctypes.byref(record))
            reports.append(record.to_report(launch.name))
        return not given_up, reports


def _too_large(launch: Launch, options: Options) -> Report | None:
    """Return the finding if a cooperative launch has more blocks than the device holds at once."""
    limit = options.resident_blocks
    if limit is None or not launch.cooperative:
        return None
    held, blocks = limit(launch) if callable(limit) else limit, math.prod(launch.grid)
    if blocks <= held:
        return None
    message = f"a cooperative launch of {blocks} blocks on a device that holds {held} of them at once"
    return Report("launch", launch.name, message)


def _scalar_bits(value: int | float | bool | np.generic, kind: str, size: int) -> int:
    if kind == "f":
        return int(
            np.array(value, np.float32 if size == 4 else np.float64).view(
                np.uint32 if size == 4 else np.uint64
            )
        )
    if kind == "h":
        return int(np.array(value).view(np.uint16))
    return int(value) & (1 << 64) - 1


def extent(value: int | Sequence[int]) -> Extent:
    """Return (x, y, z) from an int or up to three ints."""
    parts = [value] if isinstance(value, int) else list(value)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"an extent has one to three dimensions, got {value}")
    x, y, z = (*parts, 1, 1)[:3]
    return int(x), int(y), int(z)


def run_kernel(
    cuda_source: str,
    kernel_name: str,
    args: Sequence[np.ndarray | np.generic | int | float | bool],
    grid: int | Sequence[int],
    block: int | Sequence[int],
    shared_bytes: int = 0,
    cooperative: bool = False,
    cluster: int | Sequence[int] = 1,
    written: Sequence[int] = (),
    inout: Sequence[int] = (),
    scratch: Sequence[int] = (),
    options: Options | None = None,
    dependent: bool = False,
) -> EmulatedRun:
    """Run one kernel of a CUDA source.

    Args:
        args: one NumPy array per pointer parameter and a number per scalar. They are not modified.
        written: indices of output arrays. They hold nothing at the start, and one thread must write each element.
        inout: indices of arrays that are inputs and outputs. Rewriting their elements is not reported.
        scratch: indices of arrays that hold nothing at the start, and may be rewritten.
        dependent: the launch begins while the kernel in front ends. A thread must wait before it accesses memory.

    Returns:
        The run. Its outputs are those of ``written``, then of ``inout``, in the given order.
    """
    options = options or Options()
    module = KernelModule(cuda_source)
    buffers: dict[int, DeviceBuffer] = {}
    arguments: list[ArrayArgument | int | float | bool | np.generic] = []
    for i, value in enumerate(args):
        if not isinstance(value, np.ndarray):
            arguments.append(value)
            continue
        fresh = i in written or i in scratch
        buffer = (
            DeviceBuffer(value.nbytes, value.itemsize, options.poison) if fresh else DeviceBuffer.of(value)
        )
        buffers[i] = buffer
        arguments.append(ArrayArgument(buffer.address, value.nbytes, value.itemsize, output=i in written))
    sizes = extent(grid), extent(block), shared_bytes, extent(cluster)
    launch = Launch(kernel_name, *sizes, cooperative, dependent)
    finished, reports = module.launch(launch, arguments, options)
    run = EmulatedRun(launches=[launch], reports=reports)
    names = module.prepared.kernels[kernel_name]
    for i in (*written, *inout):
        array = args[i]
        assert isinstance(array, np.ndarray)
        run.outputs.append(buffers[i].numpy(array.shape, array.dtype))
        if finished and i in written:
            run.reports.extend(
                check_written(buffers[i].address, array.nbytes, array.itemsize, kernel_name, names[i])
            )
    return run


def check_written(address: int, nbytes: int, itemsize: int, kernel: str, name: str) -> list[Report]:
    """Return a finding if some element of an output was never written."""
    missing, first = unwritten(address, nbytes)
    if not missing:
        return []
    message = f"{missing // itemsize} of {nbytes // itemsize} elements of an output were never written"
    return [Report("unwritten", kernel, message, name.removesuffix("_ptr"), first // itemsize)]
