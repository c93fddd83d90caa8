# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of symbolic sizes that PyTorch writes into its graph: quotients, powers, extremes, roundings.

TVM's importer converts sums, products and whole quotients of sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tvm import tirx

from ....graph.extent import as_expr
from ..core import Converter


def scalar_converters() -> dict[str, Converter]:
    """Return the converters of functions of sizes, by the names of Python's and PyTorch's functions."""
    functions: dict[str, Callable[..., Any]] = {
        "ceil": lambda x: _whole(tirx.ceil, x),
        "floor": lambda x: _whole(tirx.floor, x),
        "pow": lambda x, y: tirx.power(_float(x), _float(y)),
        "sym_float": lambda x: _float(x),
        "sym_max": tirx.max,
        "sym_min": tirx.min,
        "truediv": lambda x, y: _float(x) / _float(y),
        "trunc": lambda x: _whole(tirx.trunc, x),
        "sym_sqrt": lambda x: tirx.sqrt(_float(x)),
    }
    return {name: partial(_converted, function) for name, function in functions.items()}


def _converted(function: Callable[..., Any], node: Any, importer: Any) -> Any:
    """(sizes) -> a size, or a float64 number."""
    return function(*(_expression(importer.env[x] if isinstance(x, torch.fx.Node) else x) for x in node.args))


def _expression(value: Any) -> Any:
    return tirx.const(value, "float64") if isinstance(value, float) else as_expr(value)


def _float(value: Any) -> Any:
    return value.astype("float64")


def _whole(rounded: Callable[[Any], Any], value: Any) -> Any:
    return value if "int" in str(value.ty) else rounded(value).astype("int64")
