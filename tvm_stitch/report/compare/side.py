# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: the kernels of a report, as a file keeps them, and the report's open opportunities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "tvm_stitch report 1"
"""The first entry of a saved report. It changes with the data of a report."""

NOTHING = "Nothing"
"""The beginning of the advice about a boundary that has to be."""


@dataclass(frozen=True)
class SideKernel:
    """A call of a kernel.

    Attributes:
        function: its name.
        kind: its author, as in a report. Kernels of stock TVM are never ``"stitched"``.
        operators: the model's operators that it computes. Empty if they are unknown.
        bytes: the bytes that it moves, or None if they are unknown or symbolic.
        seconds: its time, or None.
    """

    function: str
    kind: str
    operators: frozenset[str]
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class Opportunity:
    """Something that could be faster, with advice.

    Attributes:
        what: the two kernels of a boundary, or a kernel.
        reason: the reason of the boundary, or why the kernel moves more than it must.
        advice: what users can do.
        bytes: the bytes that would not be moved.
        seconds: the least time that they take, or None if it is unknown.
    """

    what: str
    reason: str
    advice: str
    bytes: int
    seconds: float | None


@dataclass(frozen=True)
class Side:
    """The kernels of one report.

    Attributes:
        name: what the side is called in the comparison.
        target: the target in words.
        kernels: all calls of kernels, in order.
        measured: whether times are measured. Otherwise they are estimates, which count bytes and launches only.
        opportunities: boundaries that need not be, and avoidable traffic, the largest first.

    """

    name: str
    target: str
    kernels: tuple[SideKernel, ...]
    measured: bool
    opportunities: tuple[Opportunity, ...] = ()


def side_of(data: Mapping[str, Any], name: str) -> Side:
    """Return the stitched side of a report.

    Args:
        data: plain data, as ``ModelReport.to_dict`` returns it.
        name: what the side is called.

    Raises:
        ValueError: if the data is not that of a report.
    """
    try:
        measured = bool(data["measured_on"])
        operators = [(o["source"] or o["operator"], o["name"]) for o in data["operators"]]
        kernels = tuple(
            SideKernel(
                str(k["function"]),
                str(k["kind"]),
                frozenset(" ".join(operators[i]) for i in k["operators"]),
                _moved(k),
                _seconds(k, measured),
            )
            for k in data["kernels"]
        )
        return Side(name, str(data["target"]), kernels, measured, _opportunities(data, kernels))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"this is not the data of a report: {type(error).__name__} {error}") from None


def stock_side_of(data: Mapping[str, Any]) -> Side:
    """Return the side of TVM's own pipeline of a completed report.

    Raises:
        ValueError: if TVM's own pipeline did not compile the model.
    """
    if data["stock"] is None:
        raise ValueError(
            "TVM's own pipeline does not compile this model, so there is nothing to compare with"
        )
    measured = bool(data["measured_on"])
    kernels = tuple(
        SideKernel(k["function"], k["kind"], frozenset(), _size(k["bytes"]), _seconds(k, measured))
        for k in data["stock_kernels"]
    )
    return Side("stock TVM", str(data["target"]), kernels, measured)


def save(data: Mapping[str, Any], path: Path) -> None:
    """Write a report's data to a file that :func:`read` takes."""
    path.write_text(json.dumps({"format": FORMAT, "report": data}) + "\n", encoding="utf-8")


def read(path: Path) -> Side:
    """Return the side of a saved report, named by its file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a saved report.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a saved report: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{path} is not a report of this version; write it with: tvm-stitch explain --save")
    try:
        return side_of(data["report"], path.name)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from None


def _size(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _moved(kernel: Mapping[str, Any]) -> int | None:
    """Return the traffic of a kernel's plan, or the least traffic without a plan."""
    read, written = kernel["bytes_read"], kernel["bytes_written"]
    if read is None or written is None:
        return _size(kernel["bytes_least"])
    return read + written if isinstance(read, int) and isinstance(written, int) else None


def _seconds(kernel: Mapping[str, Any], measured: bool) -> float | None:
    if not measured:
        return None if kernel["seconds"] is None else float(kernel["seconds"])
    return None if kernel["measured"] is None else float(kernel["measured"]["median"])


def _opportunities(data: Mapping[str, Any], kernels: Sequence[SideKernel]) -> tuple[Opportunity, ...]:
    """Return boundaries with advice, and kernels that move more than they must, the largest first."""
    opportunities: dict[tuple[str, str], Opportunity] = {}
    for edge in data["edges"]:
        before, after = kernels[edge["producer"]], kernels[edge["consumer"]]
        size = sum(_size(value["bytes"]) or 0 for value in edge["values"])
        for reason in edge["reasons"]:
            if reason["advice"] and not reason["advice"].startswith(NOTHING):
                what, parts = (
                    f"{before.function} | {after.function}",
                    [_share(k, size) for k in (before, after)],
                )
                each = Opportunity(what, reason["text"], reason["advice"], 2 * size, _sum(parts))
                _add(opportunities, each)
    for call, kernel in zip(data["kernels"], kernels):
        least = _size(call["bytes_least"])
        if kernel.kind == "stitched" and kernel.bytes is not None and least and kernel.bytes > least:
            extra = kernel.bytes - least
            what = "it moves more than each operand and result once"
            _add(opportunities, Opportunity(kernel.function, what, "", extra, _share(kernel, extra)))
    return tuple(sorted(opportunities.values(), key=lambda o: (-(o.seconds or 0.0), -o.bytes, o.what)))


def _add(opportunities: dict[tuple[str, str], Opportunity], each: Opportunity) -> None:
    """Add an opportunity to those of equal kernels for the same reason."""
    key = each.what, each.reason
    if (same := opportunities.get(key)) is not None:
        each = Opportunity(*key, each.advice, same.bytes + each.bytes, _sum([same.seconds, each.seconds]))
    opportunities[key] = each


def _share(kernel: SideKernel, size: int) -> float | None:
    """Return the part of a kernel's time that it moves some of its bytes for."""
    if kernel.seconds is None or not kernel.bytes:
        return None
    return kernel.seconds * min(1.0, size / kernel.bytes)


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
