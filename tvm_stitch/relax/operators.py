# SPDX-License-Identifier: Apache-2.0
"""Which of Relax's operators a value is a call of."""

from __future__ import annotations

from typing import Any


def operator_name(value: Any) -> str:
    """The name of the operator that ``value`` calls, such as ``"relax.add"``; "" where it calls none."""
    return str(getattr(getattr(value, "op", None), "name", ""))
