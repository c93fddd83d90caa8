# SPDX-License-Identifier: Apache-2.0
"""UnequalSplits: parts of different sizes are slices, each read where it is needed.

``R.split`` is one operator with all parts as results. Parts of one size are columns of one domain; others have none in
common on a CPU, so that the operator would be a kernel of its own, which reads and writes everything: a gate, its input
and the input of a convolution (MambaOut, FocalNet), queries, keys and values of different widths (LeViT).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import with_own_functions
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import readers_of
from ..rewriting.views import parts_of

SPLIT = "relax.split"


@module_pass
class UnequalSplits:
    """Replace the parts of ``R.split`` by ``R.strided_slice`` where their sizes differ.

    A split stays where several of its parts are results, or read by products as they are: each would be a kernel's copy
    then. So does one whose tuple is read as a whole. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: Any) -> Any:
        return with_own_functions(mod, _rewritten)


def _rewritten(func: Any) -> Any:
    values = dict(relax.analysis.get_var2val(func).items())
    splits = {var: call for var, call in values.items() if operator_name(call) == SPLIT}
    if not splits:
        return func
    readers = readers_of(func)
    chosen = {var: call for var, call in splits.items() if _is_replaced(var, call, readers)}
    return relax.analysis.remove_all_unused(_Mutator(chosen).visit_expr(func)) if chosen else func


def _is_replaced(var: Any, call: Any, readers: dict[Any, list[Any]]) -> bool:
    items = readers.get(var, [])
    sizes = {end - begin for begin, end in parts_of(call)}
    if len(sizes) < 2 or min(sizes) == 0 or isinstance(call.attrs.indices_or_sections, tvm.tirx.IntImm):
        return False
    if isinstance(call.args[0], relax.DataflowVar) and not isinstance(var, relax.DataflowVar):
        return False  # parts may be read where data is not seen
    if not all(b and isinstance(b.value, relax.TupleGetItem) for b in items):
        return False
    copied = {int(b.value.index) for b in items if _is_copied(b.var, readers)}
    return len(copied) <= 1


def _is_copied(var: Any, readers: dict[Any, list[Any]]) -> bool:
    """Whether a part is a result or read by a product as it is, and not only by what could read the whole instead."""
    return any(
        reader is None
        or operator_name(reader.value) in PRODUCTS
        or (isinstance(reader.value, relax.Var) and _is_copied(reader.var, readers))
        for reader in readers.get(var, [])
    )


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, splits: dict[Any, Any]):
        super().__init__()
        self.splits = splits

    def visit_tuple_getitem_(self, item: Any) -> Any:  # pylint: disable=arguments-renamed
        call = self.splits.get(item.tuple_value)
        if call is None:
            return super().visit_tuple_getitem_(item)
        begin, end = parts_of(call)[item.index]
        data = self.visit_expr(call.args[0])
        return relax.op.strided_slice(data, [int(call.attrs.axis)], [begin], [end], assume_inbound=True)
