# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch bench``: time stock TVM, stitching, and ONNX Runtime or PyTorch on this machine, alternately."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...deploy.versions import versions
from ..contenders.ready import NAMES, PEER, STITCHED, STOCK, Unavailable
from ..measuring import check_here
from ..options import add_model_options, add_timing, check_timing, make_config, parse_config, parse_target
from ..progress import Progress
from ..readers.model import check_options

if TYPE_CHECKING:
    from ...execution.timing import Times
    from ..contenders.process import Process

SUMMARY = "time stock TVM, stitching, and ONNX Runtime or PyTorch in turn on this machine, and compare their results"

SHOWN = (STOCK, STITCHED, PEER)
"""The contenders in the order of the table."""

BUSY = 0.5
"""Load average for each processor from which on the machine is busy.

Ratios are those of the fastest calls then. The threads of a call share a core for whole turns, and wait for each other:
one of PyTorch takes a hundred times as long. At a load of 6 for each processor, medians of four models
differed by up to 30 times between equal loops. Their fastest calls differed by up to 8%.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_model_options(command)
    add_timing(command)


def check(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid options."""
    check_timing(args)
    check_options(args)


def run(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Any], str]:
    """Time a model. Return the figures as data and as a table."""
    from ..contenders.judged import fault_of, times_of
    from ..contenders.process import processes

    target, load = parse_target(args.target), os.getloadavg()[0]
    check_here(target)
    config = make_config(
        parse_config(args.config) | {k: True for k in ("strict", "cuda_graph") if vars(args)[k]}
    )
    with processes(NAMES, args) as contenders:
        with progress("compiling with stock TVM and with stitching, and preparing the other runtime"):
            outputs, rows = _prepared(contenders)
        with progress(f"timing, {args.repeats} turns each"):
            times = times_of({name: contenders[name] for name in SHOWN if name in outputs}, args.repeats)
    peer_name, tolerance = rows[PEER]["name"], rows[PEER].pop("tolerance")
    for name in outputs:
        rows[name] = {**rows[name], **times[name].to_dict()}
        if name != PEER:
            rows[name] |= _error(outputs[name], outputs[PEER])
            if fault := fault_of(outputs[name], outputs[PEER], tolerance):
                rows[name]["wrong"] = fault
    compared = {name: _is_compared(rows, name) for name in (STOCK, PEER)}
    busy = is_busy(load, len(os.sched_getaffinity(0)))
    data = {
        "model": str(args.model),
        "target": json.loads(str(target)),
        "config": config.to_dict(),
        "precision": args.precision,
        "products": args.products,
        "repeats": args.repeats,
        "seed": args.seed,
        "load_average": load,
        "processors": len(os.sched_getaffinity(0)),
        **rows,
        "compared": "fastest" if busy else "median",
        "speedup": _ratio(times, STOCK, busy) if compared[STOCK] else None,
        "speedup_over_peer": _ratio(times, PEER, busy) if compared[PEER] else None,
        "versions": versions(),
    }
    shown = f"{peer_name} (CPU)" if "gpu" in target.keys else peer_name
    return data, "\n".join(_lines(rows, times, {STOCK: "stock TVM", STITCHED: "stitched", PEER: shown}, data))


def _prepared(contenders: Mapping[str, Process]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the outputs and facts of contenders. A contender that does not take the model has no outputs."""
    outputs: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, process in contenders.items():
        try:
            outputs[name], rows[name] = process.prepared()
        except Unavailable as error:
            rows[name] = {"failed": str(error)}
    return outputs, {name: rows[name] for name in SHOWN}


def _error(outputs: Any, expected: Any) -> dict[str, float]:
    from ...importers.onnx.compare import greatest_error

    return {"max_abs_error": greatest_error(outputs, expected)}


def _is_compared(rows: Mapping[str, Mapping[str, Any]], other: str) -> bool:
    """Return whether a ratio of times means anything: both contenders ran, and their results are right."""
    return not any({"failed", "wrong"} & set(rows[name]) for name in (STITCHED, other))


def is_busy(load: float, processors: int) -> bool:
    """Return whether other work on a machine disturbs times.

    Args:
        load: the load average.
        processors: the number of processors.
    """
    return load > BUSY * processors


def _ratio(times: Mapping[str, Times], other: str, busy: bool) -> float:
    if busy:
        return times[other].fastest / times[STITCHED].fastest
    return times[other].median / times[STITCHED].median


def _lines(
    rows: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Times],
    titles: Mapping[str, str],
    data: Mapping[str, Any],
) -> list[str]:
    """Return the table and the comparisons."""
    from ...execution.timing import comparison, comparison_of_fastest

    head = f"{'':20}{'median':>12}{'middle half':>22}{'fastest':>12}"
    lines = [f"{head}{'kernels':>9}{'memory-intensive':>18}{'error':>11}"]
    for name in SHOWN:
        row = rows[name]
        if name not in times:
            lines.append(f"{titles[name]:20}does not compile it: {row['failed']}")
            continue
        low, high = times[name].middle
        line = f"{titles[name]:20}{times[name].median * 1e3:9.3f} ms{low * 1e3:9.3f} to {high * 1e3:6.3f} ms"
        line += f"{times[name].fastest * 1e3:9.3f} ms"
        if name != PEER:
            kernels = row["kernels"]
            line += f"{kernels['total']:9d}{kernels['memory_intensive']:18d}{row['max_abs_error']:11.1e}"
        lines.append(line)
    peer, turns = titles[PEER], data["repeats"]
    lines.append(f"error: the greatest absolute difference to {peer}; times: of the calls of {turns} turns")
    busy = data["compared"] == "fastest"
    note = (
        ": other work on this machine makes times longer, so the fastest calls are compared" if busy else ""
    )
    lines.append(f"load average {data['load_average']:.1f} before, on {data['processors']} processors{note}")
    for name in (STOCK, STITCHED):
        if "wrong" in rows[name]:
            lines.append(f"{titles[name]} is not compared: it differs from {peer}: {rows[name]['wrong']}")
    for name in (STOCK, PEER):
        if _is_compared(rows, name):
            compare = comparison_of_fastest if busy else comparison
            lines.append(f"stitched is {compare(times[STITCHED], times[name], titles[name])}")
    return lines
