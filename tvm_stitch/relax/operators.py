# SPDX-License-Identifier: Apache-2.0
"""Which of Relax's operators a value is a call of."""

from __future__ import annotations

from typing import Any

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
"""The operators that end a kernel: what is needed on both sides of one goes through memory."""


def operator_name(value: Any) -> str:
    """The name of the operator that ``value`` calls, such as ``"relax.add"``; "" where it calls none."""
    return str(getattr(getattr(value, "op", None), "name", ""))
