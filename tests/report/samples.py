# SPDX-License-Identifier: Apache-2.0
"""A report made by hand: two equal layers of a product and a norm, behind what both read, and names that hold HTML."""

from __future__ import annotations

import dataclasses

from tvm_stitch.report.data import (
    Code,
    KernelCall,
    KernelEdge,
    ModelReport,
    Reason,
    Repeat,
    SourceOperator,
    Spread,
    StockCall,
    Totals,
    Value,
)
from tvm_stitch.report.reasons import explained

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\u2028"
"""A name that would be code, if it were not escaped."""
ACTIONABLE = "red has a symbolic or empty shape, which a grid-wide plan does not serve"


def value(name: str, origin: str = "kernel") -> Value:
    return Value(name, "4, 8", "float32", 128, origin)


def reason(text: str) -> Reason:
    return Reason("a", "b", text, *explained(text))


def sample(name: str = "head.norm") -> ModelReport:
    """Build a report. Kernels: 0, 2 and 4 are stitched, 1 and 3 are products, and 5 is left to TVM.

    Operator 7 is a view, and operator 0 is named.
    """
    plan = {
        "name": "norm", "operators": [{"operator": "s = s<4> over 8", "class": "reduce", "scheme": "Regional"}],
        "groups": [{"dominant": "s", "sub_dominants": [], "members": ["s"]}], "rows": "4",
        "passes": [{"columns": "8", "reduces": ["s"], "reduces_across_rows": [], "outputs": [], "keeps": []}],
        "mapping": {"threads a row": 32}, "shared_bytes": 8, "bytes_read": 192, "bytes_written": 128,
        "bytes_least": 256, "phases": [], "scratch": [], "launch": {}, "seconds": 3e-6,
    }  # fmt: skip
    operators = [
        SourceOperator("x0", "exp", name, "4, 8", "float32", (), (0,)),
        SourceOperator("m1", "matmul", "layer0.product", "4, 8", "float32", (0,), (1,)),
        SourceOperator("n2", "nn.layer_norm", "layer0.norm", "4, 8", "float32", (1,), (2,)),
        SourceOperator("m3", "matmul", "layer1.product", "4, 8", "float32", (2,), (3,)),
        SourceOperator("n4", "nn.layer_norm", "layer1.norm", "4, 8", "float32", (3,), (4,)),
        SourceOperator("a5", "argmax", "", "4", "int64", (4,), (5,)),
        SourceOperator("l6", "log", "", "4, 8", "float32", (), (0,)),
        SourceOperator("v7", "reshape", "", "32", "float32", (4,), ()),
    ]
    ends = "computed in the kernel of matmul"
    calls = [
        _call("first", "stitched", (6, 0), "x0"),
        _call("product", "compute", (1,), "m1", "TVM: no library"),
        _call("norm", "stitched", (2,), "n2"),
        _call("product", "compute", (3,), "m3", "TVM: no library"),
        _call("norm", "stitched", (4,), "n4"),
        _call("argmax", "tvm", (5,), "a5", "block red holds SeqStmt, not one store"),
    ]
    edges = [
        KernelEdge(0, 1, (value("x0"),), (reason("compute-intensive"),)),
        KernelEdge(1, 2, (value("m1"),), (reason(ends),)),
        KernelEdge(2, 3, (value("n2"),), (reason("compute-intensive"),)),
        KernelEdge(3, 4, (value("m3"),), (reason(ends),)),
        KernelEdge(4, 5, (value("n4"),), (reason(ACTIONABLE),)),
    ]
    return ModelReport(
        target="cuda sm_90", target_full='{"kind":"cuda"}', device="h200", kernels=tuple(calls), edges=tuple(edges),
        operators=tuple(operators), repeats=(Repeat(1, 2, 2),),
        plans={"norm": plan, "first": {**plan, "name": "first"}},
        left={"argmax": "block red holds SeqStmt, not one store"},
        boundaries=tuple(r for e in edges for r in e.reasons),
        stitched=Totals(6, 2, 1200, 512), stock=Totals(9, 2, 2000, 512), codes={"norm": Code("TIR", f"# {name}")},
    )  # fmt: skip


def _call(function: str, kind: str, operators: tuple[int, ...], result: str, note: str = "") -> KernelCall:
    stitched = kind == "stitched"
    return KernelCall(
        function, kind, operators, (value("in", "parameter"),), (value(result),),  # type: ignore[arg-type]
        192 if stitched else None, 128 if stitched else None, 256, 3e-6 if function != "argmax" else None, note,
    )  # fmt: skip


def measured_sample() -> ModelReport:
    """Return the same with times: kernels of 1 to 6 ms, and three of TVM's own of 10 to 30 ms."""
    report = sample()
    stock = [
        StockCall(name, kind, 256, 3e-6, _around(ms))  # type: ignore[arg-type]
        for name, kind, ms in (("product", "compute", 10), ("norm", "tvm", 20), ("norm", "tvm", 30))
    ]
    return dataclasses.replace(
        report,
        kernels=tuple(dataclasses.replace(k, measured=_around(i + 1)) for i, k in enumerate(report.kernels)),
        stock_kernels=tuple(stock),
        stitched=dataclasses.replace(report.stitched, measured=Spread(0.025, 0.024, 0.026)),
        stock=Totals(9, 2, 2000, 512, Spread(0.07, 0.069, 0.071)),
        measured_on="this CPU, 3 calls",
    )


def _around(ms: float) -> Spread:
    return Spread(ms * 1e-3, ms * 0.9e-3, ms * 1.1e-3)
