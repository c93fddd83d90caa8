# SPDX-License-Identifier: Apache-2.0
"""The kernels that a scheduled PrimFunc launches, and the bytes that each must move to and from memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from tvm_stitch import compat

_MANY = 1 << 62
_STATEMENTS = ("init", "block", "body", "then_case", "else_case")
_EXPRESSIONS = ("value", "condition", "extent", "predicate", "indices", "iter_values")


@dataclass
class _Kernel:
    """Elements that a kernel loads and stores, by buffer. Loads of accumulators are not counted."""

    launches: int = 1
    loads: dict[Any, int] = field(default_factory=lambda: defaultdict(int))
    stores: dict[Any, int] = field(default_factory=lambda: defaultdict(int))


def kernel_bytes(func: Any, gpu: bool) -> list[int]:
    """Return the bytes moved by every kernel that one call of ``func`` launches, in order.

    Each element of a buffer counts once for a kernel, when read and when written. A buffer counts with its size, or
    with the elements that the kernel's loops load if these are fewer (a slice, a gather).

    Args:
        func: a PrimFunc after scheduling, under any supported TVM, with static shapes.
        gpu: kernels are the outermost regions bound to threads, and global memory that the function allocates around
            them counts too. Otherwise the function is one kernel, which moves its parameters.

    Raises:
        ValueError: when a buffer's shape, or the number of launches, is symbolic.
    """
    walker = _Walker(func, gpu)
    walker.statement(func.body, 1, None if gpu else walker.start(1))
    if not gpu and not walker.kernels[0].loads and not walker.kernels[0].stores:
        # A call of library code: its accesses to the arguments are unknown.
        return [sum(walker.sizes.values())]
    moved_by = []
    for kernel in walker.kernels:
        moved = sum(walker.moved(counts) for counts in (kernel.loads, kernel.stores))
        moved_by += [moved] * kernel.launches
    return moved_by


class _Walker:
    """Visit statements with the number of times that they run."""

    def __init__(self, func: Any, gpu: bool) -> None:
        self.gpu = gpu
        self.kernels: list[_Kernel] = []
        self.sizes: dict[Any, int] = {}
        self.itemsize: dict[Any, int] = {}
        self._bound: set[Any] = set()
        for _, buffer in compat.prim_func_params(func):
            if buffer is not None:
                self._declare(buffer)

    def start(self, launches: int) -> _Kernel:
        self.kernels.append(_Kernel(launches))
        return self.kernels[-1]

    def moved(self, counts: dict[Any, int]) -> int:
        """Return the bytes of the touched buffers."""
        return sum(min(self.sizes[key], n * self.itemsize[key]) for key, n in counts.items())

    def _declare(self, buffer: Any) -> None:
        key = _memory_of(buffer)
        self.itemsize[key] = np.dtype(compat.buffer_dtype(buffer)).itemsize
        self.sizes[key] = math.prod(_static(n) for n in buffer.shape) * self.itemsize[key]

    def statement(self, stmt: Any, trips: int, kernel: _Kernel | None) -> None:
        """Count a statement that runs ``trips`` times, all launches of its kernel together."""
        name = compat.kind(stmt)
        if name == "SeqStmt":
            for part in stmt.seq:
                self.statement(part, trips, kernel)
            return
        thread = _thread(stmt)
        if thread is not None and self.gpu and kernel is None:
            if trips >= _MANY:
                raise ValueError("a host loop of symbolic extent launches kernels: they cannot be counted")
            kernel = self.start(trips)
            trips = 1
        if thread is not None and thread not in self._bound:
            self._bound.add(thread)
            self._inside(stmt, trips * _extent(stmt), kernel)
            self._bound.discard(thread)
        else:
            self._inside(
                stmt, trips * (_trips(stmt.extent) if name == "For" and thread is None else 1), kernel
            )

    def _inside(self, stmt: Any, trips: int, kernel: _Kernel | None) -> None:
        if kernel is None:
            for buffer in getattr(stmt, "alloc_buffers", ()):
                if buffer.scope() in ("global", ""):
                    self._declare(buffer)
            if compat.kind(stmt) in ("Allocate", "AllocBuffer"):
                self._allocated(stmt)
        stored = None
        if compat.kind(stmt) == "BufferStore":
            stored = _memory_of(stmt.buffer)
            if kernel is not None and stored in self.sizes:
                kernel.stores[stored] += trips * compat.lanes_of(stmt.value)
        for expr in _expressions(stmt):
            for load in compat.loads_in(expr):
                key = _memory_of(compat.load_buffer(load))
                if kernel is not None and key in self.sizes and key != stored:
                    kernel.loads[key] += trips * compat.lanes_of(load)
        for part in _STATEMENTS:
            inner = getattr(stmt, part, None)
            if isinstance(inner, tvm.runtime.Object):
                self.statement(inner, trips, kernel)

    def _allocated(self, stmt: Any) -> None:
        if compat.kind(stmt) == "AllocBuffer":
            if stmt.buffer.scope() in ("global", ""):
                self._declare(stmt.buffer)
            return
        if stmt.buffer_var.type_annotation.storage_scope in ("global", ""):
            self.itemsize[stmt.buffer_var] = np.dtype(stmt.dtype).itemsize
            self.sizes[stmt.buffer_var] = (
                math.prod(map(_static, stmt.extents)) * self.itemsize[stmt.buffer_var]
            )


def _expressions(stmt: Any) -> Iterator[Any]:
    for part in _EXPRESSIONS:
        value = getattr(stmt, part, None)
        if compat.is_expr(value):
            yield value
        elif part in ("indices", "iter_values") and value is not None:
            yield from value


def _thread(stmt: Any) -> Any:
    """Return the name of the thread axis that a statement binds, None if it binds none."""
    if compat.kind(stmt) == "For":
        return None if stmt.thread_binding is None else str(stmt.thread_binding.thread_tag)
    if compat.kind(stmt) == "AttrStmt" and stmt.attr_key == "thread_extent":
        return str(stmt.node.thread_tag)
    return None


def _extent(stmt: Any) -> int:
    return _trips(stmt.extent if compat.kind(stmt) == "For" else stmt.value)


def _trips(extent: Any) -> int:
    """Return a loop's extent. If it varies, return more than any buffer's elements, so that buffers count whole."""
    value = compat.int_value(extent)
    return _MANY if value is None else value


def _static(extent: Any) -> int:
    value = compat.int_value(extent)
    if value is None:
        raise ValueError(f"the extent {extent} is symbolic: bytes cannot be counted")
    return value


def _memory_of(buffer: Any) -> Any:
    """Return the identity of a buffer's memory: its data variable if it has one, else the buffer."""
    return buffer.data if compat.HAS_RELAY else buffer
