# SPDX-License-Identifier: Apache-2.0
"""The timeline: valid trace events, in order, one behind the other."""

from __future__ import annotations

import json

from tests.report.samples import sample
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
