# SPDX-License-Identifier: Apache-2.0
"""The shared parts of comparisons: records and ratios, tables, plots, shares of tuning time, bytes of kernels."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import tvm
from comparison import tuning_time
from comparison.measure import Built, Variant, interleaved, run_variants
from comparison.plot import panels, svg
from comparison.progress import Progress, clock
from comparison.results import Comparison, Kernels, Record, Spread
from comparison.table import markdown, ratios

from tvm_stitch import compat


def comparison() -> Comparison:
    """Return a tuned and a stitched variant, and one that failed."""
    tuned = Record(
        "tuned",
        "Ansor",
        Kernels(10, 8, 4_000_000),
        Spread(6e-3, 5e-3, 9e-3),
        Spread(2e-3, 1e-3, 3e-3),
        3.0,
        60.0,
        50,
    )
    stitched = Record(
        "stitched",
        "stitched",
        Kernels(4, 8, 1_000_000),
        Spread(4e-3, 4e-3, 4e-3),
        Spread(5e-4, 5e-4, 5e-4),
        2.0,
    )
    broken = Record("stock", "stock", problem="RuntimeError: no <compiler>", error=float("inf"))
    return Comparison(
        "encoder & co", "llvm", [broken, tuned, stitched], {"date": "today"}, ["Ansor was denied it."]
    )


def test_the_table_holds_figures_ratios_failures_and_disclosure() -> None:
    page = markdown(comparison())
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}
    assert [c.strip() for c in rows["memory-intensive kernels"].split("|")[2:5]] == ["-", "10", "4"]
    assert [c.strip() for c in rows["all kernels"].split("|")[2:5]] == ["-", "18", "12"]
    assert "6.000 (5.000 to 9.000)" in rows["whole, ms"] and "60.0 (50)" in rows["tuning, s (trials)"]
    assert "- stock failed: RuntimeError: no <compiler>" in page
    assert "- date: today" in page and "- Ansor was denied it." in page
    assert [text for _, text in ratios(comparison())] == [
        "60% fewer memory-intensive kernels",
        "memory-intensive part 4.00 times as fast",
        "whole 1.50 times as fast",
    ]


def test_json_is_strict_and_complete() -> None:
    plain = json.loads(comparison().to_json(), parse_constant=lambda name: pytest.fail(name))
    assert plain["records"][0]["error"] is None and plain["records"][1]["seconds"]["most"] == 9e-3
    assert plain["statements"] == ["Ansor was denied it."]


def test_the_plot_is_well_formed_and_leaves_out_what_was_not_measured() -> None:
    ElementTree.fromstring(svg(comparison()))
    kernels, memory, whole = panels(comparison())
    assert [(bar.label, bar.memory, bar.rest) for bar in kernels.bars] == [
        ("Ansor", 10, 8),
        ("stitched", 4, 8),
    ]
    assert [bar.memory for bar in memory.bars] == pytest.approx([2.0, 0.5])
    assert whole.bars[0].memory + whole.bars[0].rest == pytest.approx(6.0) and whole.top == pytest.approx(9.0)


def test_samplers_take_turns_in_both_directions() -> None:
    order: list[str] = []

    def sampler(name: str, values: list[float]):
        def sample() -> float:
            order.append(name)
            return values.pop(0)

        return sample

    spreads = interleaved({"a": sampler("a", [3.0, 1.0, 2.0]), "b": sampler("b", [1.0, 1.0, 1.0])}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"] and spreads["a"] == Spread(2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="blocks"):
        interleaved({}, 0)


def test_variants_that_fail_or_err_are_not_timed() -> None:
    class Fixed:
        kernels = Kernels(1, 0, 8)

        def __init__(self, value: float) -> None:
            self._value = value

        def outputs(self) -> list[np.ndarray]:
            return [np.array([self._value])]

        def sample(self) -> float:
            return 2.0

        def sample_memory(self) -> float:
            return 1.0

    def fails() -> Built:
        raise RuntimeError("stack\nat last the reason")

    variants = [
        Variant("right", "right", lambda: Built(Fixed(1.0), 5.0, 3)),
        Variant("wrong", "wrong", lambda: Built(Fixed(1.5))),
        Variant("broken", "broken", fails),
    ]
    right, wrong, broken = run_variants(variants, [np.array([1.0])], 2, 0.1, lambda line: None)
    assert right.problem is None and right.seconds == Spread(2.0, 2.0, 2.0) and right.tuning_seconds == 5.0
    assert wrong.seconds is None and wrong.error == 0.5 and "wrong" in str(wrong.problem)
    assert broken.problem == "RuntimeError: at last the reason" and broken.kernels is None


def test_tuning_time_is_shared_by_trials(tmp_path: Path) -> None:
    path = tmp_path / "times"
    assert tuning_time.spent(path, {"a"}) == (0.0, 0)
    tuning_time.note(path, 10.0, {"a": 1, "b": 3})
    tuning_time.note(path, 4.0, {"b": 2})
    tuning_time.note(path, 9.0, {})
    assert tuning_time.spent(path, {"a"}) == (2.5, 1) and tuning_time.spent(path, {"a", "b"}) == (14.0, 6)
    assert tuning_time.gap(6, 6) == [] and "4 of the 6 trials" in tuning_time.gap(6, 4)[0]


def test_progress_tells_tasks_trials_latency_and_the_rest() -> None:
    said: list[str] = []
    progress = Progress(tasks=3, wanted=8, before=2, limit=1e-9, say=said.append)
    progress.show(1, 4, None)
    progress.show(3, 8, 1.5e-3)
    assert "tasks 1/3, trials 6/10, best -" in said[0] and "rest 0:00:00" in said[0]
    assert "tasks 3/3, trials 10/10, best 1.500 ms" in said[1]
    assert clock(3725) == "1:02:05"


@pytest.mark.skipif(compat.HAS_RELAY, reason="written in the TVMScript of 0.27")
def test_bytes_count_each_element_once_and_of_a_slice_only_what_is_loaded() -> None:
    from comparison.traffic import kernel_bytes
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def sliced(x: T.Buffer((1000, 8), "float32"), total: T.Buffer((4,), "float32")):
        for i, k, again in T.grid(4, 8, 3):
            with T.sblock("total"):
                vi, vk, va = T.axis.remap("SRR", [i, k, again])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]

    @T.prim_func(s_tir=True)
    def two_kernels(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        between = T.sblock_alloc_buffer((64,), "float16")
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("between"):
                vi = T.axis.spatial(64, i)
                between[vi] = T.Cast("float16", x[vi])
        for i in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("y"):
                vi = T.axis.spatial(64, i)
                y[vi] = T.Cast("float32", between[vi])

    assert isinstance(sliced, tvm.tirx.PrimFunc)
    # 96 loads are counted: the repetition over the third axis is not told from other elements of the 1,000 rows.
    assert kernel_bytes(sliced, gpu=False) == [4 * (96 + 4)]
    assert kernel_bytes(two_kernels, gpu=True) == [64 * 4 + 64 * 2, 64 * 2 + 64 * 4]
    assert kernel_bytes(two_kernels, gpu=False) == [2 * 64 * 4]
