# SPDX-License-Identifier: Apache-2.0
"""A check that a pipeline launches no more kernels than TVM's own."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.target import Target

from tvm_stitch.execution.count import count_kernels


def more_than_stock(
    mod: tvm.IRModule, target: Target | str, relax_pipeline: Callable[[tvm.IRModule], tvm.IRModule]
) -> str:
    """Describe additional launches of ``relax_pipeline`` against TVM's default pipeline, or return an empty text.

    Memory-intensive launches and all launches count. More memory-intensive ones are allowed if they take the place of
    more launches of products, as products of few rows do. A module is skipped if TVM's pipeline does not compile it, or
    if its launches depend on run-time values.
    """
    try:
        stock = count_kernels(mod, target)
    except Exception:  # TVM does not compile it
        return ""
    own = count_kernels(mod, target, relax_pipeline)
    added = max(0, own.memory_intensive - stock.memory_intensive)
    if own.total <= stock.total and (not added or own.compute_intensive + added < stock.compute_intensive):
        return ""
    return (
        f"{own.memory_intensive} memory-intensive kernels of {own.total} ({', '.join(own.names)}), "
        f"stock {stock.memory_intensive} of {stock.total} ({', '.join(stock.names)})"
    )
