# SPDX-License-Identifier: Apache-2.0
"""Readable names for variables that hold an operator's value."""

from __future__ import annotations

from .ir import Operator


def short_name(op: Operator) -> str:
    """Return a name of at most 24 characters. TVM's names grow with the depth of the graph."""
    return op.output.name.split("_intermediate")[0][:24]
