# SPDX-License-Identifier: Apache-2.0
"""A thin layer over TVM's IR builder: loops, conditions, bound scalars and local buffers as context managers.

A value gets its name from a local buffer of one element, not from a bound scalar. TVM's simplifier substitutes bound
scalars back into their uses, which doubles the code at each level. Compilers keep such a buffer in a register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from .. import compat
from ..compat import Buffer, Expr, IRBuilder, T, Var, tir
from ..graph.classify import is_heavy
from ..graph.dtype import item_bytes
from ..graph.extent import Extent, as_expr, is_static
from ..plan.layout import SharedBuffer
from ..repairs.tir.opaque import hidden


def i64(value: int) -> Expr:
    """Return an int64 constant."""
    return compat.const(value, "int64")


@contextmanager
def loop(kind: str, extent: int | Expr, name: str = "i") -> Iterator[Var]:
    """Open a ``serial``, ``unroll``, ``vectorized`` or ``parallel`` loop with an int64 variable.

    An extent of one emits no loop: the variable is the constant 0.
    """
    if isinstance(extent, int):
        if extent == 1:
            yield i64(0)
            return
        extent = i64(extent)
    with getattr(T, kind)(i64(0), extent) as var:
        IRBuilder.name(name, var)
        yield var


@contextmanager
def loop_while(condition: Expr) -> Iterator[None]:
    """Open a loop that ends when the condition no longer holds. The condition is tested before every iteration."""
    with T.While(condition):
        yield


@contextmanager
def when(condition: Expr | None) -> Iterator[None]:
    """Open a conditional. Without a condition, none is emitted."""
    if condition is None:
        yield
        return
    with T.If(condition), T.Then():
        yield


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the conjunction of two conditions. Either may be missing."""
    if a is None or b is None:
        return a if b is None else b
    return tir.And(a, b)


def either(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Emit one of two statements, depending on a condition."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def bind(value: Expr, name: str) -> Var:
    """Bind an index for the rest of the enclosing scope."""
    return compat.bind_scalar(value, name)


def local(shape: Sequence[Extent], dtype: str, name: str, scope: str = "local") -> Buffer:
    """Allocate a buffer for the rest of the enclosing scope.

    All kernels of a module declare dynamic shared memory by its name, with one type for each name. So the type is part
    of the name.
    """
    name = f"{name}_{dtype}" if scope == "shared.dyn" else name
    return compat.allocate([as_expr(s) for s in shape], dtype, scope, name)


def dynamic(wanted: SharedBuffer) -> Buffer:
    """Allocate a buffer of the plan in dynamic shared memory, with its padding (unused bytes at the end)."""
    elements = wanted.elements + -(-wanted.unused // item_bytes(wanted.dtype))
    buffer = local([elements], wanted.dtype, wanted.name, "shared.dyn")
    return whole(buffer) if wanted.unused else buffer


def whole(buffer: Buffer) -> Buffer:
    """Keep all elements of a buffer that are used by address, or not at all, and return the buffer.

    TVM trims a buffer after the last element that it sees read or written. It does not see what a call reads or
    writes behind an address. So the last element is loaded here. TVM or the compiler drops this load.
    """
    evaluate(fetch(buffer, *(extent - 1 for extent in buffer.shape)))
    return buffer


def block_barrier(scope: str = "shared") -> None:
    """Emit a barrier for the block's threads, after which each sees what the others stored."""
    evaluate(compat.intrinsic("int32", "tvm_storage_sync", compat.string(scope)))


STACK = "global"
"""The scope of a CPU kernel's buffers, which lie on its stack if they are small. For a buffer of local scope, TVM
asks the runtime for memory in each call. No compiler turns such memory into registers, and LLVM may reason about it
for minutes."""


def stack(shape: Sequence[Extent], dtype: str, name: str) -> Buffer:
    """Allocate a buffer of a CPU kernel for the rest of the enclosing scope.

    Small buffers can become registers. Buffers of symbolic size come from the thread's memory pool.
    """
    return local(shape, dtype, name, STACK)


def words_of(buffer: Buffer) -> Buffer:
    """Return a view of a one-dimensional buffer as 32-bit words."""
    (size,) = buffer.shape
    dtype = compat.buffer_dtype(buffer)
    count = tir.floordiv(size * i64(item_bytes(dtype)), i64(4))
    return compat.view(buffer, [count], f"{buffer.name}_words", "uint32")


def flat_view(buffer: Buffer) -> Buffer:
    """Return a one-dimensional view of a buffer."""
    size = i64(1)
    for extent in buffer.shape:
        size = size * extent
    return compat.view(buffer, [size], f"{buffer.name}_flat")


def store(buffer: Buffer, value: Expr, indices: Sequence[Expr]) -> None:
    """Store one element."""
    T.buffer_store(buffer, value, list(indices))


def fetch(buffer: Buffer, *indices: Expr | int) -> Expr:
    """Load one element."""
    return compat.load(buffer, [i64(i) if isinstance(i, int) else i for i in indices])


def prefetch(buffer: Buffer, index: Expr) -> None:
    """Prefetch the cache line of an element into a CPU's second-level cache. The index may be out of bounds."""
    read, second_level, data = (compat.const(value, "int32") for value in (0, 2, 1))
    address = T.address_of(compat.load(buffer, [index]))
    T.evaluate(compat.intrinsic("void", "prefetch", address, read, second_level, data))


def leave() -> None:
    """End the thread. All threads of a block must do so together, before any barrier."""
    if not compat.LEAVES_THREADS:
        raise NotImplementedError(
            "rows of symbolic number on a GPU need Apache TVM 0.27: this TVM has no early return"
        )
    T.evaluate(T.thread_return())


def evaluate(call: Expr) -> None:
    """Emit a call for its effect."""
    T.evaluate(call)


def cell(value: Expr, name: str, scope: str = "local") -> Expr:
    """Store a scalar in a one-element buffer and return its load.

    Values are named this way and not by ``bind``, for two reasons. TVM's simplifier substitutes bound scalars back
    into their uses, which doubles the code at every level of a graph whose values are used twice. Its interval
    analysis of bound scalars also fails on some float expressions.
    """
    buffer = local([1], compat.dtype_of(value), name, scope)
    store(buffer, value, [i64(0)])
    return fetch(buffer, 0)


def number(value: Extent, name: str) -> Extent:
    """Bind a natural number of a CPU kernel, so that it is computed here and not in every index.

    TVM's simplifier substitutes bound values back unless they are read from memory. With symbolic sizes indices would
    become long, and each pass slow.
    """
    if isinstance(value, int) or compat.kind(value) in ("Var", "SizeVar", "IntImm"):
        return value
    return bind(cell(value, name, STACK), name)


def number_of(value: Extent, name: str, sizes: Iterable[Extent]) -> Extent:
    """Bind a number (see ``number``) if a size is symbolic. With static sizes TVM makes short expressions."""
    return value if is_static(sizes) else number(value, name)


class Binder:
    """Names values so that each is computed once.

    Small expressions without a costly function (``is_heavy``) stay expressions, others become cells.
    """

    def __init__(self, most: int, scope: str = "local"):
        """Bind expressions of more than ``most`` nodes to buffers of a scope."""
        self.most, self.scope = most, scope

    def bind(self, value: Expr, name: str) -> Expr:
        """Return the value itself if it is small and cheap to compute, else the load of a cell that holds it."""
        if self._weigh(value) <= self.most and not is_heavy(value):
            return value
        return cell(value, name, self.scope)

    def _weigh(self, value: Expr) -> int:
        if compat.is_load(value):
            return 1
        inner = hidden(value)
        if inner is not None:
            return self._weigh(inner)
        return 1 + sum(self._weigh(e) for e in compat.operands(value))


kernel = compat.built_body
"""Build the body of a scheduled function. The context yields a list, which holds the body after the context exits."""
