# SPDX-License-Identifier: Apache-2.0
"""Times per call from a profiler's record: the flushes between events separate them."""

from __future__ import annotations

import _flushed as flushed
import pytest

FLUSH = ("flush", 1e-3)


def test_calls_are_what_lies_between_flushes() -> None:
    events = [("early", 9.0), FLUSH, ("a", 1.0), ("b", 2.0), FLUSH, ("a", 3.0), FLUSH]
    assert flushed.split(events, ["flush"]) == [[("a", 1.0), ("b", 2.0)], [("a", 3.0)], []]
    assert flushed.split([("a", 1.0)], ["flush"]) == []


def test_a_flush_of_several_events_is_left_out_whole() -> None:
    begin = ("Memset (Device)", 1e-3)
    events = [begin, FLUSH, ("a", 1.0), begin, begin, FLUSH, ("b", 2.0)]
    found = flushed.split(events, ["Memset (Device)", "flush"])
    assert found == [[("a", 1.0), begin], [("b", 2.0)]]


def test_times_are_summed_by_call_and_copies_are_no_kernels() -> None:
    calls = [
        [("kernel", 3e-6), ("Memset (Device)", 1e-6), ("Memcpy DtoD", 2e-6)],
        [("kernel", 1e-6), ("Memset (Device)", 1e-6), ("Memcpy DtoD", 2e-6)],
        [("kernel", 5e-6), ("Memset (Device)", 1e-6), ("Memcpy DtoD", 2e-6)],
    ]
    found = flushed.summarize(calls)
    assert (found.kernels, found.copies) == (1, 2)
    assert [found.least, found.seconds, found.most] == pytest.approx([4e-6, 6e-6, 8e-6])


def test_one_odd_call_does_not_decide_the_count() -> None:
    found = flushed.summarize([[("k", 1.0)], [("tuning", 1.0), ("k", 1.0)], [("k", 1.0)]])
    assert found.kernels == 1 and found.names == ("k",)


@pytest.mark.parametrize("groups", [[], [[]], [[("k", 1.0)], []]])
def test_calls_without_events_give_nothing(groups: list) -> None:
    assert flushed.summarize(groups) is None
