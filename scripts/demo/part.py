# SPDX-License-Identifier: Apache-2.0
"""Extract some operators of a model as a model: the operators of one kernel, to compile with another pipeline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_stitch.relax.report.kernel_calls import kernel_calls
from tvm_stitch.report.data import Bytes, add_sizes


def part_of(mod: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """Extract the operators of ``main`` whose results have these names.

    Values that they read from other operators become parameters. Values that others read, and returned values, become
    results.
    """
    main = mod["main"]
    bindings = [b for block in main.body.blocks for b in block.bindings]
    chosen = [b for b in bindings if str(b.var.name) in names]
    bound = {b.var for b in chosen}
    elsewhere = [b.value for b in bindings if b.var not in bound] + [main.body.body]
    read = dict.fromkeys(v for b in chosen for v in relax.analysis.free_vars(b.value) if v not in bound)
    wanted = {v for value in elsewhere for v in relax.analysis.free_vars(value)}
    builder = relax.BlockBuilder()
    renamed: dict[Any, Any] = {v: relax.Var(str(v.name), v.ty) for v in read}
    rename = _Rename(renamed)
    with builder.function("main", list(renamed.values())):
        with builder.dataflow():
            for binding in chosen:
                renamed[binding.var] = builder.emit(rename.visit_expr(binding.value), str(binding.var.name))
            results = [builder.emit_output(renamed[b.var]) for b in chosen if b.var in wanted]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()


@relax.expr_functor.mutator
class _Rename(relax.PyExprMutator):
    def __init__(self, renamed: dict[Any, Any]) -> None:
        super().__init__()
        self.renamed = renamed

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.renamed.get(var, var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.renamed.get(var, var)


@dataclass(frozen=True)
class Launch:
    """A kernel that a call launches, and the bytes of its operands and results, each counted once."""

    name: str
    read: Bytes
    written: Bytes


def launches(mod: tvm.IRModule, passes: Any, target: Any) -> list[Launch]:
    """Return the kernels of one call of a module that a pipeline lowers."""
    with target:
        calls = kernel_calls(passes(mod)).calls
    return [
        Launch(
            c.function, add_sizes(*(v.bytes for v in c.operands)), add_sizes(*(v.bytes for v in c.results))
        )
        for c in calls
    ]
