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

    Memory-intensive launches and all launches count. A module is skipped if TVM's pipeline does not compile it, or if
    its launches depend on run-time values.
    """
    try:
        stock = count_kernels(mod, target)
    except Exception:  # TVM does not compile it
        return ""
    own = count_kernels(mod, target, relax_pipeline)
    if own.memory_intensive <= stock.memory_intensive and own.total <= stock.total:
        return ""
    return (
        f"{own.memory_intensive} memory-intensive kernels of {own.total} ({', '.join(own.names)}), "
        f"stock {stock.memory_intensive} of {stock.total} ({', '.join(stock.names)})"
    )
