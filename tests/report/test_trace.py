# SPDX-License-Identifier: Apache-2.0
"""The timeline: valid trace events, in order, one behind the other."""

from __future__ import annotations

import json

from tests.report.samples import measured_sample, sample
from tvm_stitch.report.trace import trace


def test_kernels_follow_each_other() -> None:
    data = json.loads(json.dumps(trace(sample())))
    events = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events] == ["first", "product", "norm", "product", "norm", "argmax"]
    assert [e["ts"] for e in events] == [0, 3, 6, 9, 12, 15]
    assert [e["dur"] for e in events] == [3, 3, 3, 3, 3, 0]
    assert events[0]["args"]["operators"] == ["log l6", "head.norm"]
    assert "symbolic" in events[5]["args"]["time"] and "SeqStmt" in events[5]["args"]["reason"]


def test_every_row_has_a_name() -> None:
    events = trace(sample())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["tid"] for e in events if e["ph"] == "X"} == rows.keys()
    assert rows[1] == "stitched" and rows[4] == "left to TVM"


def test_measured_times_and_stock_beside_them() -> None:
    events = trace(measured_sample())["traceEvents"]
    ours = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert [(e["ts"], e["dur"]) for e in ours] == [
        (0, 1e3),
        (1e3, 2e3),
        (3e3, 3e3),
        (6e3, 4e3),
        (10e3, 5e3),
        (15e3, 6e3),
    ]
    assert ours[0]["args"]["time"] == "the median, measured on this CPU, 3 calls"
    assert ours[0]["args"]["half of the calls (us)"] == [900, 1100]
    stock = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert [(e["name"], e["ts"], e["dur"]) for e in stock] == [
        ("product", 0, 10e3), ("norm", 10e3, 20e3), ("norm", 30e3, 30e3),
    ]  # fmt: skip
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "one call on cuda sm_90", 2: "the same by TVM's own pipeline"}
    rows = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == rows
