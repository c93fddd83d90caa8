# SPDX-License-Identifier: Apache-2.0
"""Measured times as text and as data: of calls, of kernels, and of TVM's own pipeline for comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from .data import KernelCall, ModelReport, Spread, StockCall
from .words import seconds_in_words, spread_in_words


def measured_lines(report: ModelReport) -> list[str]:
    """Return lines with the time of a call and of its kernels, with and without stitching. Empty if not measured."""
    if not report.measured_on:
        return []
    sides: list[tuple[str, Spread | None, Sequence[KernelCall | StockCall]]] = [
        ("stitched", report.stitched.measured, report.kernels),
        ("TVM's own pipeline", report.stock.measured if report.stock else None, report.stock_kernels),
    ]
    lines = [f"measured on {report.measured_on}: medians, and in brackets where the middle half lies"]
    for name, call, kernels in sides:
        if call is None:
            continue
        total, memory = _sum(kernels), _sum([k for k in kernels if k.kind in ("stitched", "tvm")])
        lines.append(f"  {name}: {spread_in_words(call)} a call")
        if total:
            lines[-1] += (
                f"; kernels {seconds_in_words(total)}, memory-intensive ones {seconds_in_words(memory)}"
            )
            if total > call.median:  # kernels are timed in separate calls, after the whole ones
                lines[-1] += "; the machine was busier when kernels were timed"
    return lines


def time_of(calls: Sequence[KernelCall | StockCall]) -> str:
    """Return the time of equal calls, for the end of a line about them. It is "" without measurements."""
    total = _sum(calls)
    if total is None:
        return ""
    return f", {seconds_in_words(total)}{' in all' if len(calls) > 1 else ''}"


def stock_lines(report: ModelReport) -> list[str]:
    """Return the kernels of TVM's own pipeline, equal ones once, the slowest first."""
    calls: dict[str, list[StockCall]] = {}
    for call in report.stock_kernels:
        calls.setdefault(call.function, []).append(call)
    by_time = sorted(calls.items(), key=lambda item: -(_sum(item[1]) or 0.0))
    return [f"  {len(same):3} x {function}{time_of(same).replace(',', ':', 1)}" for function, same in by_time]


def time_lines(report: ModelReport) -> list[str]:
    """Return every kernel call with its time, in order, for the complete text."""
    if not report.measured_on:
        return []
    lines = ["", *measured_lines(report), "", "Kernels in order, stitched:", *_each(report.kernels)]
    if report.stock_kernels:
        lines += ["", "Kernels in order, TVM's own pipeline:", *_each(report.stock_kernels)]
    return lines


def times_of(report: ModelReport) -> dict[str, Any]:
    """Return the measured times as JSON-able data, in seconds."""
    data: dict[str, Any] = {"on": report.measured_on}
    sides = (("stitched", report.stitched, report.kernels), ("stock", report.stock, report.stock_kernels))
    for name, totals, kernels in sides:
        if totals is not None and totals.measured is not None:
            each = [
                {"function": k.function, "kind": k.kind, "seconds": _plain(k.measured), "estimate": k.seconds}
                for k in kernels
            ]
            data[name] = {"call": _plain(totals.measured), "kernels": each}
    return data


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else dataclasses.asdict(spread)


def _each(kernels: Iterable[KernelCall | StockCall]) -> list[str]:
    return [
        f"  {k.function}: {spread_in_words(k.measured) if k.measured else 'not measured'}" for k in kernels
    ]


def _sum(kernels: Iterable[KernelCall | StockCall]) -> float | None:
    """Return the seconds of kernels together, or None if one of them was not measured."""
    total = 0.0
    for kernel in kernels:
        if kernel.measured is None:
            return None
        total += kernel.measured.median
    return total
