# SPDX-License-Identifier: Apache-2.0
"""StoredRows: let the kernel that computes rows store them where they belong, so that no second kernel moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ... import compat
from ...graph.extent import flatten, unflatten
from ...records.decisions import with_plans_of
from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.operators import operator_name
from ..rewriting.readers import Readers, only_reader, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import call_args, is_call_tir, result_types
from ..stitch.stitch_ops import STITCH_ATTR
from .rows import WRITTEN_ATTR, RowPositions
from .updates import Values

_DESCRIBED = "tvm_stack_make_array"
"""The call by which a host describes a tensor."""


@dataclass(frozen=True, eq=False)
class Store:
    """Rows that a stitched kernel computes, and that are written into a tensor.

    Attributes:
        made: the variable of the kernel's call.
        number: the position of the rows among the results.
        rows: the variable of the rows.
        views: the variables of reshapes between the rows and the call that writes them.
        written: the variable of the tensor with the rows.
        call: the call that writes them.
        at: the place of each element.
    """

    made: relax.Var
    number: int
    rows: relax.Var
    views: tuple[relax.Var, ...]
    written: relax.Var
    call: relax.Call
    at: RowPositions


@module_pass
class StoredRows:
    """Write rows in place by the stitched kernels that compute them.

    The positions and the tensor must be there when the kernel begins, and the kernel must not read its own rows back.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        stores: dict[relax.Var, list[Store]] = {}
        for _, func in own_functions(mod):
            for store in _stores(mod, func):
                stores.setdefault(store.made, []).append(store)
        if not stores:
            return mod
        written = {
            var: store.rows
            for found in stores.values()
            for store in found
            for var in (store.written, *store.views)
        }

        names: dict[str, str] = {}
        made: dict[tuple[Any, ...], tvm.ir.GlobalVar] = {}

        def stored(match: Match) -> relax.Expr:
            call = _stored(match, mod, stores[match.var], made)
            names[call.args[0].name_hint] = match.before.args[0].name_hint
            return call

        rules = [
            Rule("rows are stored where they belong", stored, variables=set(stores)),
            Rule(
                "the tensor is written already",
                lambda match: match.now(written[match.var]),
                variables=set(written),
                leaves_unused=True,
            ),
        ]
        mod = relax.transform.DeadCodeElimination()(apply_rules(mod, rules))
        return with_plans_of(mod, names)


def _stores(mod: tvm.IRModule, func: relax.Function) -> list[Store]:
    """Return the rows that kernels of a function can store in place."""
    values, readers = relax.analysis.get_var2val(func), readers_of(func)
    blocks = [block for block in getattr(func.body, "blocks", ()) if isinstance(block, relax.DataflowBlock)]
    found = []
    for block in blocks:
        order = {binding.var: at for at, binding in enumerate(block.bindings)}
        for binding in block.bindings:
            if operator_name(binding.value) == "relax.call_tir_inplace":
                store = _store(mod, binding, values, readers, order)
                if store is not None:
                    found.append(store)
    return found


def _store(
    mod: tvm.IRModule, binding: Any, values: Values, readers: Readers, order: Mapping[relax.Var, int]
) -> Store | None:
    at = RowPositions.of(mod[binding.value.args[0]])
    if at is None:
        return None
    tensor, positions, rows = binding.value.args[1].fields
    views: list[relax.Var] = []
    while only_reader(readers, rows) is not None and operator_name(values.get(rows)) == "relax.reshape":
        views.append(rows)
        rows = values[rows].args[0]
    if only_reader(readers, rows) is None:
        return None
    item = values.get(rows)
    made, number = (item.tuple_value, int(item.index)) if isinstance(item, relax.TupleGetItem) else (rows, 0)
    call: Any = values.get(made)
    if not is_call_tir(call) or len(call.args) > 2 or made not in order:
        return None
    if any(order.get(var, -1) >= order[made] for var in (tensor, positions)):
        return None
    func = mod[call.args[0]]
    if STITCH_ATTR not in (func.attrs or {}) or not func.attrs.get("tirx.is_scheduled"):
        return None
    if made is not rows and not all(
        read is not None and isinstance(read.value, relax.TupleGetItem) for read in readers[made]
    ):
        return None
    args, scalars = call_args(call)
    if scalars or not _only_stores(func, func.params[len(args) + number]):
        return None
    if views and _own_symbols(mod[binding.value.args[0]]):
        return None
    return Store(made, number, rows, tuple(views), binding.var, binding.value, at)


def _own_symbols(writing: tirx.PrimFunc) -> bool:
    """Return whether the shape of the rows has symbols that neither the tensor's nor the positions' shape gives."""
    into, at, rows = writing.params
    given = {extent for buffer in (into, at) for extent in buffer.shape if isinstance(extent, tirx.Var)}
    return any(symbol not in given for extent in rows.shape for symbol in compat.free_vars(extent))


def _stored(
    match: Match, mod: tvm.IRModule, stores: Sequence[Store], made: dict[tuple[Any, ...], tvm.ir.GlobalVar]
) -> relax.Call:
    """Return the call of a kernel that stores rows in place.

    Args:
        match: the call of the kernel that returns the rows.
        mod: the module.
        stores: the rows.
        made: kernels that were made already, to which the new one is added.
    """
    before = match.value
    args, results = list(before.args[1].fields), list(result_types(before))
    places = [-1] * len(results)
    for store in stores:
        tensor, positions, _ = (match.now(arg) for arg in store.call.args[1].fields)
        places[store.number] = len(args)
        results[store.number] = tensor.ty
        args += [tensor, positions]
    # Equal layers call one kernel, and functions that write rows alike.
    key = before.args[0], *((store.number, store.call.args[0], bool(store.views)) for store in stores)
    if key not in made:
        kernel = _kernel(mod, before.args[0], places, stores)
        made[key] = match.builder.add_func(kernel, before.args[0].name_hint)
    return relax.op.call_tir_inplace(
        made[key], relax.Tuple(args), places, results if len(results) > 1 else results[0]
    )


def _kernel(
    mod: tvm.IRModule, gvar: tvm.ir.GlobalVar, places: Sequence[int], stores: Sequence[Store]
) -> tirx.PrimFunc:
    """Return a kernel that stores rows in place. ``places``: for each result the input that holds it, or -1."""
    kernel = mod[gvar]
    sizes: dict[int, int] = {}
    for store in stores:
        writing, inputs = mod[store.call.args[0]], places[store.number]
        before = sum(number not in sizes for number in range(store.number))
        kernel = _storing(kernel, inputs, inputs + before, store, writing)
        sizes[store.number] = int(writing.attrs[WRITTEN_ATTR][0])
    return kernel.with_attr(WRITTEN_ATTR, [sizes[number] for number in sorted(sizes)])


def _storing(
    kernel: tirx.PrimFunc, inputs: int, position: int, store: Store, writing: tirx.PrimFunc
) -> tirx.PrimFunc:
    """Return a kernel that stores one of its results in a tensor.

    Args:
        kernel: the kernel. Its parameters are inputs and results, without those that it stores in place already.
        inputs: the number of its inputs.
        position: the rows' position among its parameters.
        store: the rows.
        writing: the function that writes such rows.
    """
    params = list(kernel.params)
    rows = params.pop(position)
    into, positions, moved = _own_buffers(writing)
    params[inputs:inputs] = [into, positions]
    extents = moved.shape if store.views else rows.shape
    body = _Redirected(rows, extents, into, positions, store.at).body(kernel.body)
    return tirx.PrimFunc(params, body, kernel.ret_type, kernel.attrs)


def _own_buffers(writing: tirx.PrimFunc) -> list[tirx.Var]:
    """Return copies of a function's parameters, with symbols of their own.

    ``renew_defs`` of TVM gives a buffer's shape new symbols, but not its layout.
    """
    extents = [extent for buffer in writing.params for extent in buffer.shape]
    old = {symbol for extent in extents for symbol in compat.free_vars(extent)}
    new = {symbol: tirx.Var(symbol.name, "int64") for symbol in old}
    return [
        tirx.decl_buffer(
            [compat.substitute(extent, new) for extent in buffer.shape], buffer.dtype, buffer.name
        )
        for buffer in writing.params
    ]


class _Redirected:
    """Rewrites the stores of rows as stores into a tensor."""

    def __init__(
        self,
        rows: tirx.Var,
        extents: Sequence[Any],
        into: tirx.Var,
        positions: tirx.Var,
        at: RowPositions,
    ):
        self.rows, self.extents, self.into, self.positions, self.at = rows, extents, into, positions, at
        self.own: set[Any] = {rows}
        self.analyzer = compat.Analyzer()

    def body(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return the body of the kernel with the stores redirected."""
        self.own.update(_views(body, self.rows))
        body = tvm_ffi.structural_map(body, (tirx.For, self._loop))
        body = tvm_ffi.structural_map(body, [(tirx.BufferStore, self._store), (tirx.DeclBuffer, self._view)])
        return tvm_ffi.structural_map(body, (tvm.ir.Call, self._pointer))

    def _is_store(self, node: Any) -> bool:
        return node.buffer in self.own

    def _loop(self, loop: tirx.For) -> tirx.For:
        """Return a vectorized loop over adjacent elements of one row, or a serial loop in its place."""
        found: list[bool] = []
        stores = (tirx.BufferStore, lambda node: found.append(self._is_store(node)))
        tvm_ffi.structural_walk(loop.body, stores, order="pre")
        if loop.kind != tirx.ForKind.VECTORIZED or not any(found):
            return loop
        apart: list[tirx.BufferStore] = []  # an exception would come back from TVM's walk as another one

        def vector(store: tirx.BufferStore) -> tirx.Stmt:
            whole = self._vector_store(store, loop) if self._is_store(store) else store
            if whole is None:
                apart.append(store)
            return store if whole is None else whole

        body, kind = tvm_ffi.structural_map(loop.body, (tirx.BufferStore, vector)), loop.kind
        if apart:
            body = tvm_ffi.structural_map(loop.body, (tirx.BufferStore, self._store))
            kind = tirx.ForKind.SERIAL
        return tirx.For(loop.loop_var, loop.min, loop.extent, kind, body)

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        if not self._is_store(store):
            return store
        return self._at(store, flatten(store.indices, store.buffer.shape), tirx.const(0, "int64"))

    def _vector_store(self, store: tirx.BufferStore, vector: tirx.For) -> tirx.Stmt | None:
        """Return the store of a vector, or None if its elements do not lie in one row."""
        flat, extents = flatten(store.indices, store.buffer.shape), self.extents
        first = self.analyzer.simplify(compat.substitute(flat, {vector.loop_var: vector.min}))
        offset = self.analyzer.simplify(vector.loop_var - vector.min)
        adjacent = self.analyzer.can_prove(flat - first == offset)
        same_row = self.analyzer.can_prove(extents[-1] % vector.extent == 0) and self.analyzer.can_prove(
            first % vector.extent == 0
        )
        last = self.at.order[-1] == len(self.into.shape) - 1 and len(extents) > self.at.lead
        return self._at(store, first, offset) if adjacent and same_row and last else None

    def _at(self, store: tirx.BufferStore, flat: Any, offset: Any) -> tirx.Stmt:
        """Return the store of the element ``offset`` behind a position of the rows, flattened."""
        axes = [self.analyzer.simplify(axis) for axis in unflatten(flat, self.extents)]
        index, inside = self.at.index(self.positions, self.into.shape, axes)
        index[-1] = index[-1] + offset
        return tirx.IfThenElse(inside, tirx.BufferStore(self.into, store.value, index), None)

    def _view(self, view: tirx.DeclBuffer) -> tirx.Stmt:
        """Drop a view of the rows, which no longer have memory of their own."""
        return tirx.Evaluate(0) if view.buffer in self.own else view

    def _pointer(self, call: Any) -> Any:
        """Return the tensor's pointer in the place of that of the rows: both are on one device."""
        return self.into.data if tvm_ffi.structural_equal(call, self.rows.data) else call


def _only_stores(func: tirx.PrimFunc, param: tirx.Var) -> bool:
    """Return whether a kernel uses a parameter, and views of it, for stores alone."""
    own = {param, *_views(func.body, param)}
    stores: list[Any] = []
    others: list[Any] = []
    described: list[Any] = []  # where the host asks for the device that has the tensor

    def stored(store: tirx.BufferStore) -> None:
        if store.buffer in own:
            stores.append(store)

    def loaded(load: Any) -> None:
        if load.source in own:
            others.append(load)

    def passed(call: Any) -> None:
        others.extend(arg for arg in call.args if isinstance(arg, tirx.Var) and arg in own)
        if compat.call_name(call) == _DESCRIBED and tvm_ffi.structural_equal(call.args[0], param.data):
            described.append(call)

    kinds = ((tirx.BufferStore, stored), (tvm.ir.TensorLoad, loaded), (tvm.ir.Call, passed))
    tvm_ffi.structural_walk(func.body, kinds, order="pre")
    pointers = len(own) - 1 + len(described)  # views and descriptions read the parameter's pointer
    return bool(stores) and len(others) == pointers


def _views(body: tirx.Stmt, param: tirx.Var) -> list[tirx.Var]:
    """Return the buffers of other shapes over the memory of a parameter."""
    found: list[tirx.Var] = []

    def declared(view: tirx.DeclBuffer) -> None:
        if tvm_ffi.structural_equal(view.data, param.data):
            found.append(view.buffer)

    tvm_ffi.structural_walk(body, (tirx.DeclBuffer, declared), order="pre")
    return found
