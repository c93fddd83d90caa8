# SPDX-License-Identifier: Apache-2.0
"""One call as a timeline in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from .data import ModelReport

ROWS = {"stitched": 1, "compute": 2, "library": 3, "tvm": 4}
"""The row of each kind of kernel."""
NAMES = {
    "stitched": "stitched",
    "compute": "around a compute-intensive operator",
    "library": "libraries",
    "tvm": "left to TVM",
}


def trace(report: ModelReport) -> dict[str, Any]:
    """The kernels of a call one behind the other, each as long as the cost model expects it to take.

    The model counts bytes and launches, no arithmetic: a kernel around a compute-intensive operator takes at least so
    long. A kernel of symbolic shape has no length (a mark of 0), which its arguments say.
    """
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "tid": 0,
            "args": {"name": f"one call on {report.target}"},
        }
    ]
    for kind in dict.fromkeys(k.kind for k in report.kernels):
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": ROWS[kind], "args": {"name": NAMES[kind]}}
        events.append(named)
    start = 0.0
    for i, kernel in enumerate(report.kernels):
        micros = (kernel.seconds or 0.0) * 1e6
        args: dict[str, Any] = {
            "kernel": i,
            "operators": [report.operators[o].label for o in kernel.operators],
            "bytes moved": kernel.bytes_moved,
            "time": "not known: a symbolic shape"
            if kernel.seconds is None
            else "estimated, of the memory alone",
        }
        if kernel.note:
            args["computed by" if kernel.kind != "tvm" else "reason"] = kernel.note
        events.append(
            {
                "ph": "X",
                "name": kernel.function,
                "cat": kernel.kind,
                "pid": 1,
                "tid": ROWS[kernel.kind],
                "ts": round(start, 3),
                "dur": round(micros, 3),
                "args": args,
            }
        )
        start += micros
    return {"displayTimeUnit": "ns", "traceEvents": events}
