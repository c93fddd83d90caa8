# SPDX-License-Identifier: Apache-2.0
"""The page of the documentation that lists all honoured operators and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..converters import CONVERSIONS
from ..converters.node import ANY
from .stock import STOCK

_HEAD = """# ONNX operators

`tvm_stitch.importers.onnx.load.from_onnx` and the command line import the operators of this page. They check
every node of a model first. A node with another operator, an attribute that is not listed, or another value is
refused by name. The message has the node, its domain and operator set, the attribute and its value.

Converters are tvm_stitch's own or those of TVM. An operator that ONNX defines as a function of others, such as
`SwiGLU`, needs no entry: ONNX's inliner replaces it. So are functions of the model itself. Sizes, axes and
other numbers that decide shapes have to be constants, or to follow from shapes.

`python scripts/onnx_operators.py` writes this page, and a test compares the two. "From" is the first operator
set that is honoured. An attribute without values in parentheses may have any value.
"""


def page() -> str:
    """Return the page in Markdown."""
    own = [(op, c.since, c.attributes, "tvm_stitch") for (domain, op), c in CONVERSIONS.items() if not domain]
    stock = [(op, s.since, s.attributes, "TVM") for op, s in STOCK.items() if ("", op) not in CONVERSIONS]
    contrib = [
        (op, c.since, c.attributes, "tvm_stitch")
        for (domain, op), c in CONVERSIONS.items()
        if domain == "com.microsoft"
    ]
    parts = [_HEAD, "## ONNX's own domain\n", _table([*own, *stock])]
    parts += ["## ONNX Runtime's domain, `com.microsoft`\n", _table(contrib)]
    return "\n".join(parts)


def _table(rows: list[tuple[str, int, Mapping[str, Any], str]]) -> str:
    lines = ["| Operator | From | Attributes | Converter |", "|---|---|---|---|"]
    for op, since, attributes, who in sorted(rows):
        lines.append(
            f"| `{op}` | {since} | {', '.join(_attribute(*a) for a in sorted(attributes.items()))} | {who} |"
        )
    return "\n".join(lines) + "\n"


def _attribute(name: str, values: Any) -> str:
    if values is ANY or values == ANY:
        return f"`{name}`"
    return f"`{name}` ({' or '.join(f'`{v}`' for v in values)})"
