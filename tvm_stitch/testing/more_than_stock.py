# SPDX-License-Identifier: Apache-2.0
"""Whether a pipeline launches more kernels than TVM's own."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.target import Target

from ..execution.count import count_kernels


def more_than_stock(
    mod: tvm.IRModule, target: Target | str, relax_pipeline: Callable[[tvm.IRModule], tvm.IRModule]
) -> str:
    """What ``relax_pipeline`` launches more than TVM's default pipeline, memory-intensive or in all; empty if nothing.

    Nothing is said of a module that TVM's pipeline does not compile, or whose launches depend on run-time values.
    """
    try:
        stock = count_kernels(mod, target)
    except Exception:  # whatever TVM makes of it
        return ""
    own = count_kernels(mod, target, relax_pipeline)
    if own.memory_intensive <= stock.memory_intensive and own.total <= stock.total:
        return ""
    return (
        f"{own.memory_intensive} memory-intensive kernels of {own.total} ({', '.join(own.names)}), "
        f"stock {stock.memory_intensive} of {stock.total} ({', '.join(stock.names)})"
    )
