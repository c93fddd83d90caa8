# SPDX-License-Identifier: Apache-2.0
"""Selections: compute ``topk`` of up to 64 elements of rows by one kernel, which reads a row once.

A sampler takes 20 to 64 of a vocabulary's scores. TVM sorts whole rows, by a call on a CPU and by about a dozen kernels
on a GPU. Targets other than LLVM and CUDA keep the sort. It gets integers there, because TVM compares floats, which
gives NaN no position.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from ... import compat
from ...compute.selection.cpu_kernel import cpu_selection
from ...compute.selection.cuda_kernel import cuda_selection
from ...compute.selection.ordered import LAST_INDEX, NARROW, order_of
from ...compute.selection.selection import MOST, Selection
from ...support.module_pass import module_pass
from ..rewriting.calls import with_bound_calls
from ..rewriting.compute_pass import ComputePass
from ..rewriting.views import shape_of
from .few_largest import TOP_K, with_last_axis


@module_pass
class Selections(ComputePass):
    """Rewrite ``topk`` as a call of a kernel. Runs before TVM chooses kernels for sorting."""

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_bound_calls(mod, {TOP_K}, self._as_kernel, why="a few elements are found without a sort")

    def _as_kernel(self, builder: relax.BlockBuilder, call: relax.Call, var: relax.Var) -> relax.Expr:
        (x,), attrs = call.args, call.attrs
        shape, count, dtype = shape_of(x), int(attrs.k), str(x.ty.dtype)
        if not shape or not 0 < count <= MOST or dtype not in NARROW:
            return call
        axis = int(attrs.axis) % len(shape)
        length = shape[axis]
        if isinstance(length, int) and not count <= length <= LAST_INDEX:
            return call
        if self.target.kind.name not in ("llvm", "cuda"):
            return call if dtype == "int32" else _of_integers(builder, call, axis)
        which, index_dtype = str(attrs.ret_type), str(attrs.dtype) if attrs.dtype is not None else "int32"
        x, restored = with_last_axis(builder, x, axis, len(shape))
        lead = list(x.ty.shape.values)[:-1]
        rows: Any = tirx.const(1, "int64")
        for extent in lead:
            rows = rows * extent
        rows = compat.Analyzer().simplify(rows)
        flat = builder.emit(relax.op.reshape(x, [rows, x.ty.shape.values[-1]]))
        kinds = {"both": (dtype, index_dtype), "values": (dtype,), "indices": (index_dtype,)}[which]
        selection = Selection(
            _own(rows, "rows"), _own(x.ty.shape.values[-1], "length"), count, bool(attrs.largest), dtype, kinds,
            which != "indices",
        )  # fmt: skip
        kernel = builder.add_func(self._kernel(selection).without_attr("global_symbol"), "topk")
        self.computed["topk", var] = f"our kernel: {count} of {length} elements"
        types = [relax.TensorType([rows, count], kind) for kind in kinds]
        done = builder.emit(
            relax.call_tir(kernel, relax.Tuple([flat]), types if which == "both" else types[0])
        )
        parts = [builder.emit(relax.TupleGetItem(done, i)) for i in range(2)] if which == "both" else [done]
        found = [restored(builder.emit(relax.op.reshape(part, [*lead, count]))) for part in parts]
        return relax.Tuple([builder.emit(each) for each in found]) if which == "both" else found[0]

    def _kernel(self, selection: Selection) -> tirx.PrimFunc:
        if self.target.kind.name == "cuda":
            return cuda_selection(selection, self.device)
        choices = self.device.choices
        return cpu_selection(selection, choices.selection_block, choices.serial_selection)


def _of_integers(builder: relax.BlockBuilder, call: relax.Call, axis: int) -> relax.Expr:
    """Return a sort of int32 in the order of the elements, and the elements at its indices."""
    (x,), attrs = call.args, call.attrs

    def key(given: te.Tensor) -> te.Tensor:
        return te.compute(given.shape, lambda *i: order_of(given(*i), str(given.dtype), True), name="key")

    keys = builder.emit(builder.call_te(key, x, primfunc_name_hint="sort_key"))
    order = builder.emit(relax.op.topk(keys, attrs.k, axis, "indices", bool(attrs.largest), "int64"))
    which, dtype = str(attrs.ret_type), str(attrs.dtype) if attrs.dtype is not None else "int32"
    values = relax.op.gather_elements(x, order, axis=axis)
    indices = order if dtype == "int64" else relax.op.astype(order, dtype)
    if which == "both":
        return relax.Tuple([builder.emit(each) for each in (values, indices)])
    return values if which == "values" else indices


def _own(extent: Any, name: str) -> Any:
    """Return a static extent, or a variable of the kernel's own."""
    known = compat.int_value(extent)
    return tirx.Var(name, "int64") if known is None else known
