# SPDX-License-Identifier: Apache-2.0
"""Seeded random Relay graphs, checked against float64 bounds on llvm, on CUDA and emulated.

``python -m stitch_testing.relay.random_graphs --start 0 --count 300 --target llvm`` makes a long run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import tvm

from tvm_stitch.config import StitchConfig
from tvm_stitch.target import arch_of

from ..random.checks import CheckResult, Job, Outcome, checked, jobs_of, long_run, outcome, parser
from ..random.growth import Graph, Level, grow
from ..reference.bounds import Bound
from .front_end import RelayFrontEnd
from .reference import evaluate_bounds
from .run import Build, build_stitched, build_stock, run
from .steps import RELAY_STEPS


class RandomRelayGraph(Graph):
    """A generated Relay graph."""

    def tolerance(self, inputs: Sequence[np.ndarray], half_arithmetic: bool = True) -> list[Bound]:
        return evaluate_bounds(self.mod, inputs, half_arithmetic=half_arithmetic)


def random_graph(seed: int, max_elements: int = 40_000, level: Level = "grid") -> RandomRelayGraph:
    """Grow a graph of 3 to some 45 operators, a few of them matmuls. Equal arguments give equal graphs.

    ``max_elements``, ``level`` and errors are those of :func:`~stitch_testing.random.growth.grow`.
    """
    return grow(RandomRelayGraph, seed, RelayFrontEnd(), max_elements, level, RELAY_STEPS)


Check = Callable[[RandomRelayGraph, Build], CheckResult[RandomRelayGraph]]


def _checked_on(
    graph: RandomRelayGraph, build: Build, target: tvm.target.Target, device: tvm.runtime.Device
) -> CheckResult[RandomRelayGraph]:
    return checked(
        graph, True, lambda inputs: (run(build(graph.mod, target, None), inputs, device), None, [])
    )


def check_graph_llvm(graph: RandomRelayGraph, build: Build = build_stock) -> CheckResult[RandomRelayGraph]:
    """Compile for llvm with ``build``, run, and compare."""
    return _checked_on(graph, build, tvm.target.Target("llvm"), tvm.cpu())


def check_graph_cuda(graph: RandomRelayGraph, build: Build = build_stock) -> CheckResult[RandomRelayGraph]:
    """Compile for the first CUDA device with ``build``, run there, and compare."""
    device = tvm.cuda(0)
    target = tvm.target.Target(f"cuda -arch={arch_of(device)}", host="llvm")
    return _checked_on(graph, build, target, device)


def check_graph_cuda_emulated(
    graph: RandomRelayGraph, build: Build = build_stock
) -> CheckResult[RandomRelayGraph]:
    """Compile for CUDA with ``build``, run in the emulator, and compare. Its reports count as problems."""
    from cuda_emulator import run_relay_cuda

    def work(inputs: list[np.ndarray]) -> tuple[list[np.ndarray], int, list[str]]:
        # The graph's seed also picks the order in which blocks and threads run.
        done = run_relay_cuda(graph.mod, inputs, build=build, seed=graph.seed)
        return list(done.outputs), len(done.launches), [str(report) for report in done.reports]

    return checked(graph, True, work)


CHECKS: dict[str, Check] = {
    "llvm": check_graph_llvm,
    "cuda": check_graph_cuda,
    "emulated-cuda": check_graph_cuda_emulated,
}


def _work(job: Job) -> Outcome:
    graph = random_graph(job.seed, job.max_elements, job.level)
    build: Build = build_stock if job.stock else partial(build_stitched, config=job.config)
    result = CHECKS[job.target](graph, build)
    return outcome(job, result, lambda: str(graph.mod.astext(show_meta_data=False)))


def main(argv: Sequence[str] | None = None) -> int:
    """Check many Relay graphs, and print the failures and a summary. The exit code is 1 if any failed."""
    options = parser("relay.random_graphs", list(CHECKS), main.__doc__)
    options.add_argument(
        "--plain-launch-barriers", action="store_true", help="grid-wide kernels keep their barriers (CUDA)"
    )
    args = options.parse_args(argv)
    config = StitchConfig(
        plain_launch_barriers=args.plain_launch_barriers, multiprocessors=args.multiprocessors
    )
    jobs = jobs_of(Job, args, config)
    return 1 if long_run(_work, jobs, args.jobs, args.timeout, args.target) else 0


if __name__ == "__main__":
    sys.exit(main())
