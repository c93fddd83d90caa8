# SPDX-License-Identifier: Apache-2.0
"""One call as a timeline in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..graph.sizes import with_sizes_as_text
from .data import KernelCall, ModelReport, StockCall

ROWS = {"stitched": 1, "compute": 2, "library": 3, "tvm": 4}
"""The row of each kind of kernel."""
NAMES = {
    "stitched": "stitched",
    "compute": "around a compute-intensive operator",
    "library": "libraries",
    "tvm": "left to TVM",
}
STITCHED, STOCK = 1, 2
"""The processes that stand for the two pipelines."""


def trace(report: ModelReport) -> dict[str, Any]:
    """Return the kernels of a call one behind the other, and below them those of TVM's own pipeline.

    Each is as long as measured, or else as estimated by the cost model. The model counts bytes and launches, but no
    arithmetic, so a kernel around a compute-intensive operator takes at least that long. A kernel of symbolic shape
    has no length (a mark of 0), which its arguments say.
    """
    callers = len({kernel.caller for kernel in report.kernels})
    what = "one call" if callers < 2 else f"one call of each of {callers} functions"
    events = _process(STITCHED, f"{what} on {report.target}", report.kernels, NAMES)
    start = 0.0
    for i, kernel in enumerate(report.kernels):
        args: dict[str, Any] = {
            "kernel": i,
            "operators": [report.operators[o].label for o in kernel.operators],
            "bytes moved": kernel.bytes_moved,
        }
        if kernel.note:
            args["computed by" if kernel.kind != "tvm" else "reason"] = kernel.note
        events.append(_event(STITCHED, kernel, start, args, report))
        start += events[-1]["dur"]
    if report.stock_kernels:
        named = {**NAMES, "tvm": "memory-intensive"}
        events += _process(STOCK, "the same by TVM's own pipeline", report.stock_kernels, named)
        start = 0.0
        for i, stock in enumerate(report.stock_kernels):
            events.append(_event(STOCK, stock, start, {"kernel": i, "bytes moved": stock.bytes}, report))
            start += events[-1]["dur"]
    return {"displayTimeUnit": "ns", "traceEvents": with_sizes_as_text(events)}


def _process(
    number: int, name: str, kernels: Iterable[KernelCall | StockCall], rows: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the names of a process and of its rows."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}},
    ]
    for kind in dict.fromkeys(k.kind for k in kernels):
        named = {"name": rows[kind]}
        events.append({"ph": "M", "name": "thread_name", "pid": number, "tid": ROWS[kind], "args": named})
    return events


def _event(
    process: int, kernel: KernelCall | StockCall, start: float, args: dict[str, Any], report: ModelReport
) -> dict[str, Any]:
    """Return the event of a kernel that starts at a time in microseconds."""
    measured = kernel.measured
    micros = (measured.median if measured else kernel.seconds or 0.0) * 1e6
    if measured:
        source = f"the median, measured on {report.measured_on}"
        args["half of the calls (us)"] = [round(measured.low * 1e6, 3), round(measured.high * 1e6, 3)]
    else:
        source = "not known: a symbolic shape" if kernel.seconds is None else "estimated, of the memory alone"
    return {
        "ph": "X",
        "name": kernel.function,
        "cat": kernel.kind,
        "pid": process,
        "tid": ROWS[kernel.kind],
        "ts": round(start, 3),
        "dur": round(micros, 3),
        "args": {**args, "time": source},
    }
