# SPDX-License-Identifier: Apache-2.0
"""UnequalSplits: parts of different sizes are slices, each read where it is needed.

``R.split`` is one operator with all parts as results. Parts of one size are columns of one domain; others have none in
common on a CPU, so that the operator would be a kernel of its own, which reads and writes everything: a gate, its input
and the input of a convolution (MambaOut, FocalNet), queries, keys and values of different widths (LeViT).
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax

from ...support.module_pass import module_pass
from ..rewriting.functions import own_functions
from ..rewriting.movement import SPLIT
from ..rewriting.operators import PRODUCTS, operator_name
from ..rewriting.readers import Readers, readers_of
from ..rewriting.rules import Match, Rule, apply_rules
from ..rewriting.views import parts_of


@module_pass
class UnequalSplits:
    """Replace the parts of ``R.split`` by ``R.strided_slice`` where their sizes differ.

    A split stays where several of its parts are results, or read by products as they are: each would be a kernel's copy
    then. So does one whose tuple is read as a whole. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        splits = dict(part for _, func in own_functions(mod) for part in _parts(func))
        why = "each part is read where it is needed"
        rule = Rule(why, lambda match: _slice(match, splits[match.var]), variables=splits, leaves_unused=True)
        return apply_rules(mod, [rule])


def _parts(func: relax.Function) -> Iterator[tuple[relax.Var, relax.Call]]:
    """The variables of the parts that are replaced, with the split of each."""
    splits = {
        var: call for var, call in relax.analysis.get_var2val(func).items() if operator_name(call) == SPLIT
    }
    readers = readers_of(func) if splits else {}
    for var, call in splits.items():
        if _is_replaced(var, call, readers):
            yield from ((binding.var, call) for binding in readers[var])


def _is_replaced(var: relax.Var, call: relax.Call, readers: Readers) -> bool:
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


def _is_copied(var: relax.Var, readers: Readers) -> bool:
    """Whether a part is a result or read by a product as it is, and not only by what could read the whole instead."""
    return any(
        reader is None
        or operator_name(reader.value) in PRODUCTS
        or (isinstance(reader.value, relax.Var) and _is_copied(reader.var, readers))
        for reader in readers.get(var, [])
    )


def _slice(match: Match, split: relax.Call) -> relax.Expr:
    """The slice that is a part of a split."""
    begin, end = parts_of(split)[match.before.index]
    data = match.now(split.args[0])
    return relax.op.strided_slice(data, [int(split.attrs.axis)], [begin], [end], assume_inbound=True)
