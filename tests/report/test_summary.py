# SPDX-License-Identifier: Apache-2.0
"""The summary: on one screen, equal kernels once, boundaries by reason."""

from __future__ import annotations

import dataclasses

from tests.report.samples import ACTIONABLE, sample
from tvm_stitch.report.data import KernelCall, Reason
from tvm_stitch.report.summary import LINES, WIDTH, summary


def test_the_summary() -> None:
    text = summary(sample(), "h200, 132 multiprocessors", {})
    first, second = text.splitlines()[:2]
    assert first == "cuda sm_90, planned for h200, 132 multiprocessors"
    assert second.startswith(
        "6 kernels a call: 3 stitched (2 different), 2 around a compute-intensive operator, 1 left"
    )
    assert "1.2 kB moved" in text
    assert "2 times the same 2 kernels from layer0.product on" in text
    assert "    2 x norm: 1 operator, 4 rows, 320 B, the least 256 B; layer0..1.norm" in text
    assert "Kernels around a compute-intensive operator (TVM: no library)" in text
    assert (
        "Kernels left to TVM (block red holds SeqStmt, not one store)" in text
        and "No stitch op takes" not in text
    )
    assert "    2 x compute-intensive (a | b)" in text and f"    1 x {ACTIONABLE} (a | b)" in text


def test_a_thousand_kernels_fit_a_screen() -> None:
    report = sample()
    kernels = tuple(
        KernelCall(f"kernel_{i}_{'long_' * 30}", "stitched", (), (), (), 1, 1, 2, None) for i in range(1000)
    )
    reasons = tuple(
        Reason(f"p{i}", f"c{i}", f"reason {chr(97 + i % 26) * (i % 26 + 1)}", "", "") for i in range(1000)
    )
    kinds = ("compute", "library", "tvm")
    kernels += tuple(
        dataclasses.replace(k, kind=kinds[i % 3], note=f"how {i}") for i, k in enumerate(kernels)
    )  # type: ignore[arg-type]
    left = {f"call{i}": "why " * 60 for i in range(100)}
    text = summary(dataclasses.replace(report, kernels=kernels, boundaries=reasons, left=left), "", {})
    assert len(text.splitlines()) <= LINES and max(map(len, text.splitlines())) <= WIDTH
    assert "Stitched kernels" in text and "more (--verbose)" in text


def test_names_of_layers_become_ranges() -> None:
    report = sample()
    sources = ["block0.conv1", "block1.conv1", "block2.conv1", "head"]
    operators = tuple(dataclasses.replace(report.operators[1], source=s) for s in sources)
    kernels = tuple(dataclasses.replace(report.kernels[1], operators=(i,)) for i in range(4))
    text = summary(dataclasses.replace(report, operators=operators, kernels=kernels), "", {})
    assert "block0..2.conv1, head" in text
    sources = ["layer.0.norm/add_1", "layer.1.norm/add_7", "layer.2.norm/add_13", "layer.0.norm/exp"]
    operators = tuple(dataclasses.replace(report.operators[1], source=s) for s in sources)
    text = summary(dataclasses.replace(report, operators=operators, kernels=kernels), "", {})
    assert "; layer.0..2.norm, layer.0.norm/exp" in text


def test_several_functions_are_told_apart() -> None:
    report = sample()
    callers = ["decode", "decode", "prefill", "prefill", "prefill", "prefill"]
    kernels = tuple(dataclasses.replace(k, caller=c) for k, c in zip(report.kernels, callers))
    text = summary(dataclasses.replace(report, kernels=kernels), "", {})
    assert "6 kernels in all 2 functions: 3 stitched" in text
    lines = [line for line in text.splitlines() if line.startswith("  a call of ")]
    moved = [sum(k.bytes_moved for k in kernels if k.caller == c) for c in ("decode", "prefill")]  # type: ignore[misc]
    assert lines[0] == f"  a call of decode: 2 kernels; {moved[0]} B moved"
    assert lines[1] == f"  a call of prefill: 4 kernels; {moved[1] / 1000:.3g} kB moved"
    many = tuple(dataclasses.replace(report.kernels[0], caller=f"f{i}") for i in range(50))
    text = summary(dataclasses.replace(report, kernels=many), "", {})
    assert "  a call of f4: 1 kernel; " in text and "      and 45 more (--verbose)" in text


def test_steps_that_differ_by_a_number_are_one_line() -> None:
    """As those of an RNN do, of which each reads its own slice of the input."""
    report = sample()
    first = report.kernels[2]
    sources = [f"cell/mul_{3 * i}" for i in range(5)]
    operators = tuple(dataclasses.replace(report.operators[1], source=s) for s in sources)
    plan = report.plans[first.function]
    names = [f"stitch_slice{i}_add1" for i in range(4)] + ["stitch_slice9_add1"]
    kernels = tuple(
        dataclasses.replace(first, function=n, operators=(i,)) for i, n in enumerate([*names[:4], *names[4:]])
    )
    same = dict.fromkeys(names[:4], plan)
    other = {names[4]: {**plan, "rows": 77}}
    text = summary(
        dataclasses.replace(report, operators=operators, kernels=kernels, plans={**same, **other}), "", {}
    )
    assert "    4 x stitch_slice0..3_add1 (4 alike): 1 operator, 4 rows, " in text
    assert "; cell/mul_0..9\n" in text and "    1 x stitch_slice9_add1: 1 operator, 77 rows" in text
    two = dataclasses.replace(report, operators=operators, kernels=kernels[:2], plans=same)
    assert "alike" not in summary(two, "", {})


def test_calls_that_move_different_bytes_are_told_apart() -> None:
    """A library's function is called for operators of many sizes."""
    report, call = (
        sample(),
        KernelCall("library.convolution", "library", (), (), (), None, None, 577_000, None),
    )
    other = dataclasses.replace(call, bytes_least=1_090_000)
    text = summary(dataclasses.replace(report, kernels=(call, other, call)), "", {})
    assert "    2 x library.convolution: 577 kB" in text and "    1 x library.convolution: 1.09 MB" in text
