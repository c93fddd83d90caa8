# SPDX-License-Identifier: Apache-2.0
"""UnequalSplits: replace a split into different sizes by slices, each computed where it is read.

``R.split`` is one operator with all slices as results. Slices of one size are columns of one row domain. Slices of
different sizes share no domain on a CPU, so that the split would be a kernel that reads and writes everything.
Examples are a gate, its input and the input of a convolution (MambaOut, FocalNet). Others are queries, keys and
values of different widths (LeViT).
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
    """Replace the slices of ``R.split`` by ``R.strided_slice`` if their sizes differ.

    A split stays if several of its slices are results, or are read by products as they are. Each would then be a copy
    by a kernel. A split whose tuple is read as a whole stays too. Runs before ``LegalizeOps``.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        splits = dict(part for _, func in own_functions(mod) for part in _parts(func))
        why = "each part is read where it is needed"
        rule = Rule(why, lambda match: _slice(match, splits[match.var]), variables=splits, leaves_unused=True)
        return apply_rules(mod, [rule])


def _parts(func: relax.Function) -> Iterator[tuple[relax.Var, relax.Call]]:
    """Yield the variable of each slice to replace, with its split."""
    splits = {
        var: call for var, call in relax.analysis.get_var2val(func).items() if operator_name(call) == SPLIT
    }
    readers = readers_of(func) if splits else {}
    for var, call in splits.items():
        if _is_replaced(var, call, readers):
            yield from ((binding.var, call) for binding in readers[var])


def _is_replaced(var: relax.Var, call: relax.Call, readers: Readers) -> bool:
    items = readers.get(var, [])
    if not items:  # a dead split stays, and later passes remove it
        return False
    sizes = {end - begin for begin, end in parts_of(call)}
    if len(sizes) < 2 or min(sizes) == 0 or isinstance(call.attrs.indices_or_sections, tvm.tirx.IntImm):
        return False
    if isinstance(call.args[0], relax.DataflowVar) and not isinstance(var, relax.DataflowVar):
        return False  # slices may be read in blocks where the data is not visible
    if not all(b and isinstance(b.value, relax.TupleGetItem) for b in items):
        return False
    copied = {int(b.value.index) for b in items if _is_copied(b.var, readers)}
    return len(copied) <= 1


def _is_copied(var: relax.Var, readers: Readers) -> bool:
    """Return whether a slice is a result, or a product reads it as it is. Others can read the whole instead."""
    return any(
        reader is None
        or operator_name(reader.value) in PRODUCTS
        or (isinstance(reader.value, relax.Var) and _is_copied(reader.var, readers))
        for reader in readers.get(var, [])
    )


def _slice(match: Match, split: relax.Call) -> relax.Expr:
    """Return one slice of a split."""
    begin, end = parts_of(split)[match.before.index]
    data = match.now(split.args[0])
    return relax.op.strided_slice(data, [int(split.attrs.axis)], [begin], [end], assume_inbound=True)
