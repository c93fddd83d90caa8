# SPDX-License-Identifier: Apache-2.0
"""Names of a model's own format, kept in the spans of the calls that they become."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from ..rewriting.rules import CALL, Match, Rule, apply_rules


def named_call(call: relax.Call, name: str) -> relax.Call:
    """Return the call with a name as the source in its span. The span has no line: it is not a position in a file."""
    span = tvm.ir.Span(tvm.ir.SourceName(name), 0, 0, 0, 0)
    return relax.Call(call.op, call.args, call.attrs, list(call.ty_args), span)


def with_named_calls(mod: tvm.IRModule, names: Mapping[str, str]) -> tvm.IRModule:
    """Return the module with names for calls that have none yet, by the variables that hold their results."""

    def named(match: Match) -> relax.Expr | None:
        name = names.get(str(match.var.name))
        return named_call(match.value, name) if name and match.before.span is None else None

    return apply_rules(mod, [Rule("a report names what the user wrote", named, (CALL,))])
