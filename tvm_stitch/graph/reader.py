# SPDX-License-Identifier: Apache-2.0
"""Read an unscheduled PrimFunc (one perfect loop nest per block) into a StitchGraph."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from .. import compat
from ..compat import Buffer, Expr, PrimFunc, Stmt, Var, has_load
from ..support.failures import Refusal
from .access import loads
from .combiners import COMBINERS
from .extent import Extent, as_extent, is_number, same
from .ir import Axis, Operator, StitchGraph, Tensor, wired
from .rewrite.build import make_operator
from .rewrite.conditions import plain_conditions
from .rewrite.constants import inline_constants
from .rewrite.reduced_order import in_memory_order


class Unreadable(Refusal):
    """No StitchGraph can express the function. The message names the construct."""


def read(func: PrimFunc, name: str = "stitch") -> StitchGraph:
    """Read a function into a graph.

    The body is a root block over loop nests. Each nest holds one block with one store. Blocks may have spatial and
    reduced axes, an init, ``if_then_else``, casts and gathers. A scalar constant in a block of its own becomes an
    operator of the graph only if it is an output.

    Args:
        func: the PrimFunc.
        name: the graph's name.

    Raises:
        Unreadable: if a block does anything else (several stores, extern calls, scatter writes, argmax-like tuple
            reductions).
    """
    try:
        return _Reader(func, name).graph()
    except NotImplementedError as err:
        raise Unreadable(str(err)) from err


class _Reader:
    def __init__(self, func: PrimFunc, name: str):
        self.name = name
        self.tensor: dict[Buffer, Tensor] = {}
        self.operators: list[Operator] = []
        self.params: list[Buffer] = []
        self.symbols: list[Var] = []
        for var, buffer in compat.prim_func_params(func):
            if buffer is None:
                self.symbols.append(var)
            else:
                self.params.append(buffer)
        self.body = func.body
        self.written: set[Buffer] = set()

    def graph(self) -> StitchGraph:
        body = self.body
        if not compat.is_block_realize(body):
            raise Unreadable("the body is not a root block")
        root = body.block
        if len(root.iter_vars) or len(root.match_buffers) or root.init is not None:
            raise Unreadable("the root block has axes, matched buffers or an init")
        self._statement(root.body)
        inputs = [self._tensor_of(b) for b in self.params if b not in self.written]
        outputs = [self._tensor_of(b) for b in self.params if b in self.written]
        if not outputs:
            raise Unreadable("no parameter is written")
        graph = StitchGraph(self.name, inputs, self.operators, outputs, self.symbols)
        return in_memory_order(inline_constants(graph))

    def _statement(self, stmt: Stmt) -> None:
        if compat.kind(stmt) == "SeqStmt":
            for s in compat.elements(stmt.seq):
                self._statement(s)
            return
        loops: dict[Var, Extent] = {}
        while compat.kind(stmt) == "For":
            if int(stmt.kind) != 0 or compat.int_value(stmt.min) != 0:
                raise Unreadable("a loop is already scheduled or does not start at 0")
            loops[stmt.loop_var] = as_extent(stmt.extent)
            stmt = stmt.body
        if not compat.is_block_realize(stmt):
            raise Unreadable(f"a loop nest ends in {compat.kind(stmt)}, not in a block")
        self._block(stmt, loops)

    def _block(self, realize: Stmt, loops: dict[Var, Extent]) -> None:
        block = realize.block
        where = f"block {block.name_hint}"
        if compat.int_value(realize.predicate) != 1:
            raise Unreadable(f"{where} has a predicate")
        if len(block.match_buffers) or len(block.alloc_buffers):
            raise Unreadable(f"{where} matches or allocates buffers")
        self._bindings(block, realize.iter_values, dict(loops), where)
        store = block.body
        if compat.kind(store) != "BufferStore":
            raise Unreadable(f"{where} holds {compat.kind(store)}, not one store")
        if store.buffer in self.written:
            raise Unreadable(f"{where} writes a buffer that another block wrote")
        iters = compat.elements(block.iter_vars)
        spatial = {iv.var: as_extent(iv.dom.extent) for iv in iters if int(iv.iter_type) == 0}
        reduce = [Axis(iv.var, as_extent(iv.dom.extent)) for iv in iters if int(iv.iter_type) == 2]
        if len(spatial) + len(reduce) != len(iters):
            raise Unreadable(f"{where} has an axis that is neither spatial nor reduced")
        axes = self._output_axes(store, spatial, where)
        output = self._tensor_of(store.buffer)
        value, combiner, identity = self._combine(block, store, reduce, where)
        value = plain_conditions(value)
        operand = {}
        for load, _ in loads(value):
            buffer = compat.load_buffer(load)
            if buffer is store.buffer or store.buffer == buffer:
                raise Unreadable(f"{where} reads what it writes")
            operand[buffer] = self._tensor_of(buffer)
        op = make_operator(str(block.name_hint), output, (axes, reduce), value, operand, combiner, identity)
        self.written.add(store.buffer)
        self.operators.append(wired(op))

    @staticmethod
    def _bindings(block: Stmt, values: Any, loops: dict[Var, Extent], where: str) -> None:
        """Check that each axis runs over its own loop, and each loop over an axis, so that the block covers its
        space.
        """
        for axis, value in zip(compat.elements(block.iter_vars), compat.elements(values)):
            extent = as_extent(axis.dom.extent)
            if compat.int_value(axis.dom.min) != 0:
                raise Unreadable(f"{where} has an axis that does not start at 0")
            if compat.int_value(value) == 0 and is_number(extent, 1):
                continue
            if compat.kind(value) not in ("Var", "SizeVar") or value not in loops:
                raise Unreadable(f"{where} binds an axis to an expression, or a loop to two axes")
            if not same(loops.pop(value), extent):
                raise Unreadable(f"{where} has an axis of another extent than its loop")
        if any(not is_number(e, 1) for e in loops.values()):
            raise Unreadable(f"{where} repeats in a loop that no axis names")

    def _output_axes(self, store: Stmt, spatial: dict[Var, Any], where: str) -> list[Axis]:
        """Return the spatial axes in the order of the output's dimensions."""
        axes: list[Axis] = []
        left = dict(spatial)
        for index, dim in zip(compat.elements(store.indices), compat.elements(store.buffer.shape)):
            dim = as_extent(dim)
            if compat.int_value(index) == 0 and is_number(dim, 1):
                axes.append(Axis(compat.tir.Var("unit", "int64"), 1))
            elif compat.kind(index) in ("Var", "SizeVar") and index in left and same(left[index], dim):
                axes.append(Axis(index, left.pop(index)))
            else:
                raise Unreadable(f"{where} does not write one element per point of its axes")
        if any(not is_number(e, 1) for e in left.values()):
            raise Unreadable(f"{where} writes an element more than once")
        axes += [Axis(v, 1) for v in left]
        return axes

    def _combine(
        self, block: Stmt, store: Stmt, reduce: list[Axis], where: str
    ) -> tuple[Expr, str | None, Expr | None]:
        if block.init is None:
            if reduce:
                raise Unreadable(f"{where} reduces without an init")
            return store.value, None, None
        init = block.init
        if compat.kind(init) != "BufferStore" or has_load(init.value) or compat.free_vars(init.value):
            raise Unreadable(f"{where} initialises with more than a constant")
        value = store.value
        combiner = next((name for name, c in COMBINERS.items() if c.node == compat.kind(value)), None)
        if combiner is None:
            raise Unreadable(f"{where} combines with {compat.kind(value)}")
        if init.buffer != store.buffer or not _equal_indices(init.indices, store.indices):
            raise Unreadable(f"{where} initialises another element than it accumulates into")
        if not _is_neutral(combiner, init.value):
            raise Unreadable(f"{where} starts a {combiner} from {init.value}, which is not its identity")
        for own, other in ((value.a, value.b), (value.b, value.a)):
            if compat.is_load(own) and compat.load_buffer(own) == store.buffer:
                if not _equal_indices(own.indices, store.indices):
                    raise Unreadable(f"{where} accumulates from another element of its output")
                return other, combiner, _start(combiner, init.value)
        raise Unreadable(f"{where} does not accumulate into its output")

    def _tensor_of(self, buffer: Buffer) -> Tensor:
        if buffer not in self.tensor:
            shape = tuple(map(as_extent, compat.elements(buffer.shape)))
            self.tensor[buffer] = Tensor(str(buffer.name), shape, compat.buffer_dtype(buffer), buffer)
        return self.tensor[buffer]


def _equal_indices(a: Any, b: Any) -> bool:
    """Return whether two accesses have the same indices, compared by variable and by number."""
    return len(a) == len(b) and all(
        compat.same_var(i, j)
        or (compat.int_value(i) is not None and compat.int_value(i) == compat.int_value(j))
        for i, j in zip(a, b)
    )


def _start(combiner: str, value: Expr) -> Expr:
    """Return the start value of a reduction: infinity if TVM starts a float maximum or minimum from the type's last
    number.

    The maximum of minus infinities is minus infinity.
    """
    if combiner not in ("max", "min") or compat.kind(value) != "FloatImm":
        return value
    dtype, sign = compat.dtype_of(value), -1 if combiner == "max" else 1
    is_last = sign * float(value.value) >= float(ml_dtypes.finfo(dtype).max)
    return compat.const(sign * math.inf, dtype) if is_last else value


def _is_neutral(combiner: str, value: Expr) -> bool:
    """Return whether every partial result of a reduction may start from this value."""
    wanted = COMBINERS[combiner].neutral
    if wanted is None:
        return True
    return compat.kind(value) in ("IntImm", "FloatImm") and float(value.value) == wanted
