# SPDX-License-Identifier: Apache-2.0
"""Check that every front end makes the same graphs and plans of named workloads, by descriptions in a file.

The workloads are written once, in operators that Relax and Relay both have, and each front end outlines its stitch
ops by its own passes. The descriptions of the results do not depend on the front end (:mod:`.canonical`). Two TVMs do
not fit into one process, so the descriptions are in a file. This command writes the file::

    python -m stitch_testing.workloads.equivalents --write PATH

Tests in the environment of each TVM compare with it. The file holds whole graphs, and of each plan the main lines with
a digest of all. ``--plans`` prints whole plans, to find the line in which two TVMs differ.

Operators that the TVMs define differently are left out. Relax sums up a mean of float16 in float16, and Relay in
float32 between two casts. Relax's ``round`` takes halves to the even number, and Relay's takes them away from zero.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm

from tvm_stitch import compat
from tvm_stitch.config import StitchConfig
from tvm_stitch.device import device_model
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.plan.choose import choose_plan
from tvm_stitch.target import resolve_target
from tvm_stitch.testing.workloads import cases, grid_cases
from tvm_stitch.testing.workloads.case import Case

from .canonical import graph_lines, plan_lines, rename

CUDA = {"kind": "cuda", "arch": "sm_90"}

SETTINGS: Mapping[str, tuple[Any, StitchConfig]] = {
    "llvm": ("llvm", StitchConfig()),
    "sm_90": (CUDA, StitchConfig(clusters=False, grid_barriers=False)),
    "sm_90 with grid barriers": (CUDA, StitchConfig(clusters=False, plain_launch_barriers=True)),
}
"""Targets and options by name. Clusters are off, since only one of the TVMs can launch them."""

CORES = 8
"""Cores of the planned CPU, independent of this machine."""

Description = dict[str, dict[str, list[list[str]]]]
"""``graphs`` and ``plans`` of a workload, each by the settings (joined by commas) that share it: lines by kernel."""

_MAIN_LINES = ("kernel:", "  mapping:", "  launch:", "  phase ", "  shared memory")


def workloads() -> dict[str, Case]:
    """Return the workloads whose graphs and plans must be equal, by name and extents."""
    f16 = "float16"
    cases_of = [
        cases.softmax(1024, 1024),
        cases.softmax(33, 1000, f16),
        cases.log_softmax(64, 30000),
        cases.attention_softmax(4, 8, 128, 256),
        cases.layer_norm(1024, 1024),
        cases.add_layer_norm_gelu(1024, 512),
        cases.softmax_add_layer_norm_gelu(1024, 1024),
        cases.group_norm_silu(8, 128, 32, 1024),
        cases.lstm_cell(512, 768),
        cases.swiglu(1024, 1024),
        cases.power_broadcast_add(1024, 1024),
        grid_cases.layer_norm_backward(4096, 768),
        grid_cases.batch_norm_training(8192, 256),
        grid_cases.row_sum(75000, 32),
        grid_cases.column_sum(262144, 256),
        grid_cases.clip_adam([(1_000_000,)]),
        grid_cases.deviation_sum(4096, 4096),
        grid_cases.standardize_by_max(4096, 4096),
        grid_cases.figure7(4096, 1024, 8192),
    ]
    return {f"{case.name} {', '.join(_told(case))}": case for case in cases_of}


def _told(case: Case) -> list[str]:
    dtype = [] if case.arguments[0].dtype == "float32" else [case.arguments[0].dtype]
    return [*(f"{name} {size}" for name, size in case.sizes.items()), *dtype]


def stitch_graphs(case: Case, target: Any, config: StitchConfig) -> list[StitchGraph]:
    """Return the graphs of a workload's stitch ops, by the front end of the installed TVM."""
    target = resolve_target(target)
    if compat.HAS_RELAY:
        return _from_relay(case, target, config)
    from ..stitch_graphs import stitch_graphs as from_relax

    return from_relax(case.build(), config, target)


def _from_relay(case: Case, target: Any, config: StitchConfig) -> list[StitchGraph]:
    from tvm_stitch.relay.lower import read_function
    from tvm_stitch.relay.stitch_ops import StitchOps

    from ..relay.cases import in_relay

    outline: Any = StitchOps(config, target)
    mod = outline(in_relay(case).build())
    return [read_function(f, target, "stitch")[1] for f in stitched_functions(mod)]


def stitched_functions(mod: tvm.IRModule) -> list[Any]:
    """Return the functions that Relay's ``StitchOps`` outlined, in the order of their calls."""
    from tvm import relay

    from tvm_stitch.relay.stitch_ops import is_marked
    from tvm_stitch.relay.traverse import post_order

    bodies = [func.body for func in mod.functions.values() if isinstance(func, relay.Function)]
    return [expr for expr in post_order(bodies) if is_marked(expr)]


def describe_workload(case: Case, whole: bool = False) -> Description:
    """Describe a workload under all settings: its graphs, and its plans as main lines and a digest, or ``whole``."""
    graphs: dict[str, list[list[str]]] = {}
    plans: dict[str, list[list[str]]] = {}
    with _cores():
        for name, (target, config) in SETTINGS.items():
            device = device_model(target, config)
            if device.is_gpu:
                device = replace(device, max_cluster=1, cooperative=config.grid_barriers)
            kernels = []
            for graph in stitch_graphs(case, target, config):
                plan = choose_plan(rename(graph), device, config)
                lines = plan_lines(plan)
                kernels.append((graph_lines(graph), lines if whole else _shortened(lines)))
            kernels.sort()
            graphs[name] = [lines for lines, _ in kernels]
            plans[name] = [lines for _, lines in kernels]
    return {"graphs": _shared(graphs), "plans": _shared(plans)}


def _shortened(lines: list[str]) -> list[str]:
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return [*(line for line in lines if line.startswith(_MAIN_LINES)), f"sha256 {digest}"]


def _shared(lists: Mapping[str, list[list[str]]]) -> dict[str, list[list[str]]]:
    """Join the settings with equal values into one key."""
    keys: list[list[str]] = []
    for name, value in lists.items():
        key = next((k for k in keys if lists[k[0]] == value), None)
        if key is None:
            keys.append([name])
        else:
            key.append(name)
    return {", ".join(key): lists[key[0]] for key in keys}


@contextmanager
def _cores() -> Iterator[None]:
    before = os.environ.get("TVM_NUM_THREADS")
    os.environ["TVM_NUM_THREADS"] = str(CORES)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TVM_NUM_THREADS"]
        else:
            os.environ["TVM_NUM_THREADS"] = before


def main(argv: Sequence[str] | None = None) -> None:
    """Write or print the descriptions."""
    parser = argparse.ArgumentParser(
        prog="python -m stitch_testing.workloads.equivalents", description=__doc__
    )
    parser.add_argument("--write", type=Path, metavar="PATH", help="write all of them to a file")
    parser.add_argument("--only", default="", metavar="TEXT", help="workloads whose names hold TEXT")
    parser.add_argument("--plans", action="store_true", help="whole plans instead of their main lines")
    options = parser.parse_args(argv)
    plans = {
        n: describe_workload(case, options.plans) for n, case in workloads().items() if options.only in n
    }
    text = json.dumps(plans, indent=1) + "\n"
    if options.write is None:
        print(text, end="")
    else:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(text)


if __name__ == "__main__":
    main()
