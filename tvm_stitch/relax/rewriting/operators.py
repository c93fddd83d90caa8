# SPDX-License-Identifier: Apache-2.0
"""The operators of Relax by family, and the operator that a value calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from operator import attrgetter

import tvm
from tvm import relax

from .contents import contents_of
from .functions import own_functions

PRODUCTS = frozenset(
    f"relax.{name}"
    for name in (
        "matmul",
        *(f"nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")),
        "nn.attention",
        "nn.attention_bias",
        "nn.attention_var_len",
    )
)
"""The operators that end a kernel: values that both sides of one need go through memory."""


OPAQUE_PATTERN = 8
"""TVM's ``op_pattern`` of functions that ``FuseOps`` fuses nothing into."""

_BROADCASTING = (
    "add divide equal floor_divide floor_mod greater greater_equal less less_equal maximum minimum mod multiply "
    "not_equal power subtract where"
)
BROADCASTING = frozenset(f"relax.{name}" for name in _BROADCASTING.split())
"""The operators that broadcast their operands."""

UNARY = frozenset(
    f"relax.{name}"
    for name in (
        "abs acos acosh asin asinh astype atan atanh bitwise_not ceil cos cosh erf exp floor isfinite isinf isnan log "
        "logical_not negative nn.gelu nn.gelu_tanh nn.relu nn.selu nn.silu round rsqrt sigmoid sign sin sinh sqrt "
        "square tan tanh trunc"
    ).split()
)
"""The operators that compute each element of the result of one element of their only operand."""

ELEMENTWISE = UNARY | BROADCASTING
"""The operators that compute each element of the result of one element of each operand."""


def operator_name(value: relax.Expr | None) -> str:
    """Return the name of the operator that ``value`` calls, such as ``"relax.add"``, or "" if it calls none."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def with_results_of(call: relax.Call, args: Iterable[relax.Expr], dtype: str) -> relax.Call:
    """Return a product of other operands whose results have the type ``dtype``. It must take an ``out_dtype``."""
    operator = attrgetter(operator_name(call).removeprefix("relax."))(relax.op)
    names = list(inspect.signature(operator).parameters)[2:]
    options = {name: getattr(call.attrs, name) for name in names if name != "out_dtype"}
    return operator(*args, **options, out_dtype=dtype)


def operators_in(mod: tvm.IRModule) -> frozenset[str]:
    """Return the names of the operators that a module's own functions call."""
    return frozenset(name for _, func in own_functions(mod) for name in contents_of(func))


def has_operators(mod: tvm.IRModule, names: Iterable[str]) -> bool:
    """Return True if a module's own functions call any of some operators."""
    return not operators_in(mod).isdisjoint(names)
