# SPDX-License-Identifier: Apache-2.0
"""PrimFuncs, their parameters and bodies, under one set of names for all supported TVMs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .capabilities import HAS_TIRX
from .expressions import (
    Buffer,
    Expr,
    IRBuilder,
    PrimFunc,
    Stmt,
    T,
    Var,
    buffer_dtype,
    kind,
    structural_map,
    tir,
)


def prim_func_params(func: PrimFunc) -> list[tuple[Var, Buffer | None]]:
    """Return each parameter of a PrimFunc with its buffer (None for a scalar parameter)."""
    if HAS_TIRX:
        return [(p, p if kind(p.ty) == "BufferType" else None) for p in func.params]
    return [(p, func.buffer_map.get(p)) for p in func.params]


def with_body_and_params(
    func: PrimFunc, body: Stmt, replaced: Mapping[Buffer, Buffer], more: Sequence[Buffer]
) -> PrimFunc:
    """Return the PrimFunc with another body, with some parameters' buffers replaced, and with further parameters
    appended.
    """
    if HAS_TIRX:
        params = [replaced.get(p, p) for p in func.params]
        return tir.PrimFunc([*params, *more], body, func.ret_type, func.attrs)
    handles = {tir.Var(b.name, "handle"): b for b in more}
    buffer_map = {p: replaced.get(b, b) for p, b in func.buffer_map.items()} | handles
    return tir.PrimFunc([*func.params, *handles], body, func.ret_type, buffer_map, func.attrs)


def is_block_realize(stmt: Stmt) -> bool:
    """Return whether a statement is a block's realize node."""
    return kind(stmt) in ("SBlockRealize", "BlockRealize")


def open_frame(frame: Any) -> Any:
    """Enter a frame of a Relay TVM's IR builder until the enclosing frame ends. Return the frame's result."""
    frame.add_callback(partial(frame.__exit__, None, None, None))
    return frame.__enter__()


def bind_scalar(value: Expr, name: str) -> Var:
    """Bind a scalar until the enclosing scope of the function under construction ends. Return its variable."""
    var = T.Bind(value) if HAS_TIRX else open_frame(T.LetStmt(value))
    IRBuilder.name(name, var)
    return var


def allocate(shape: Sequence[Expr], dtype: str, scope: str, name: str) -> Buffer:
    """Allocate a buffer until the enclosing scope of the function under construction ends."""
    if HAS_TIRX:
        buffer = T.alloc_buffer(list(shape), dtype, scope=scope, layout=None)
        IRBuilder.name(name, buffer)
        return buffer
    held = "int8" if dtype == "bool" else dtype  # TVM itself keeps booleans as int8 in memory
    data = open_frame(T.allocate(list(shape), held, scope))
    IRBuilder.name(name, data)
    return tir.decl_buffer(list(shape), dtype, name, data=data, scope=scope)


def view(buffer: Buffer, shape: Sequence[Expr], name: str, dtype: str | None = None) -> Buffer:
    """Return a buffer of another shape or dtype over a compact buffer's memory, in the function under construction."""
    dtype = dtype or buffer_dtype(buffer)
    if HAS_TIRX:
        result = T.decl_buffer(list(shape), dtype, data=buffer.data, scope=buffer.scope(), layout=None)
        IRBuilder.name(name, result)
        return result
    return tir.decl_buffer(list(shape), dtype, name, data=buffer.data, scope=buffer.scope())


@contextmanager
def built_body() -> Iterator[list[Stmt]]:
    """Build the body of a scheduled function, a root block. The list holds it after the context."""
    result: list[Stmt] = []
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            if HAS_TIRX:
                T.func_attr({"s_tir": True})
            with T.sblock("root") if HAS_TIRX else T.block("root"):
                T.reads([])
                T.writes([])
                yield result
        result.append(builder.get().body)


def with_float_constants(func: PrimFunc, replaced: Callable[[Expr], Expr | None]) -> PrimFunc:
    """Return the PrimFunc with float constants replaced. A constant stays if ``replaced`` returns None for it."""
    if not HAS_TIRX:
        return func.with_body(tir.stmt_functor.ir_transform(func.body, None, replaced, ["FloatImm"]))

    def change(constant: Expr) -> Expr:
        replacement = replaced(constant)
        return constant if replacement is None else replacement

    body = structural_map(func.body, (tir.FloatImm, change), order="post")
    return func if body.same_as(func.body) else func.with_body(body)


def with_buffers(body: Stmt, buffers: Mapping[Buffer, Buffer]) -> Stmt:
    """Return a statement with buffers replaced, at least one. In a TVM with Relax, buffers are variables."""

    def change(var: Any) -> Any:
        return buffers.get(var, var)

    return structural_map(body, (type(next(iter(buffers))), change), order="post")


def changed_block(block: Any, **changes: Any) -> Any:
    """Return a block of a TVM with Relax with some fields changed."""
    from tvm import s_tir

    fields = "iter_vars reads writes name_hint body init alloc_buffers match_buffers annotations span".split()
    return s_tir.SBlock(**{name: changes.get(name, getattr(block, name)) for name in fields})
