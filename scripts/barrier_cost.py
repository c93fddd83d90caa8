# SPDX-License-Identifier: Apache-2.0
"""Measure the microseconds of a grid barrier and a cluster barrier, by blocks on an SM and threads in a block.

    python scripts/barrier_cost.py
    python scripts/barrier_cost.py --emulate        # no GPU: runs the kernels once, at a small size, without times

A kernel that only passes barriers is timed with 0, 1, 10 and 100 of them. The cost is the slope of its time over their
number, so neither the launch nor the kernel's ends count. "-" means that the blocks do not fit on the device at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
import tvm
from _gpu import need_gpu
from _measure import time_on_gpu
from tvm import relax

from stitch_testing.barrier_kernels import Barrier, barrier_loop

COUNTS = (0, 1, 10, 100)
BLOCKS_PER_SM = (1, 2, 4)
THREADS = (256, 512, 1024)
CLUSTERS = (2, 4, 8)


@dataclass(frozen=True)
class Setting:
    """One cell of the table: the barrier, and the launch of the kernel. ``cluster`` is 1 for a grid barrier."""

    barrier: Barrier
    blocks_per_sm: int
    threads: int
    cluster: int = 1

    def blocks(self, sms: int) -> int:
        """Return the blocks of the launch: as many as fill the SMs, in whole clusters, and at least one cluster."""
        return max(sms * self.blocks_per_sm // self.cluster, 1) * self.cluster

    def module(self, barriers: int, sms: int) -> tvm.IRModule:
        """Return the kernel with this number of barriers."""
        return barrier_loop(
            self.barrier, barriers, self.blocks(sms), self.threads, self.blocks_per_sm, self.cluster
        )


def settings(
    blocks_per_sm: Sequence[int], threads: Sequence[int], clusters: Sequence[int], threads_of_sm: int = 2048
) -> list[Setting]:
    """Return the settings whose threads fit on an SM: a grid barrier, and a barrier for each size of a cluster."""
    fitting = [
        (per_sm, count) for count in threads for per_sm in blocks_per_sm if per_sm * count <= threads_of_sm
    ]
    settings_of = []
    for per_sm, count in fitting:
        settings_of.append(Setting("grid", per_sm, count))
        settings_of += [Setting("cluster", per_sm, count, cluster) for cluster in clusters]
    return settings_of


def slope(counts: Sequence[int], times: Sequence[float]) -> float:
    """Return the time that one more barrier adds, by least squares over all counts."""
    return float(np.polyfit(counts, times, 1)[0])


def measure(setting: Setting, sms: int, counts: Sequence[int] = COUNTS) -> float | None:
    """Measure the microseconds of a barrier on this machine's GPU, None if the launch does not fit.

    Raises RuntimeError if a kernel did not finish.
    """
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    contenders: dict[str, Any] = {}
    for count in counts:
        executable = tvm.compile(setting.module(count, sms), target)
        main = relax.VirtualMachine(executable, device)["main"]
        try:
            result = main().numpy()
        except (RuntimeError, tvm.error.InternalError) as error:
            if "COOPERATIVE_LAUNCH_TOO_LARGE" in str(error) or "too many blocks" in str(error):
                return None
            raise
        if not np.array_equal(result, np.full(setting.blocks(sms), count, np.float32)):
            raise RuntimeError(f"{setting} with {count} barriers did not finish")
        contenders[str(count)] = main
    timed = time_on_gpu(contenders)
    return slope(counts, [1e6 * timed[str(count)].seconds for count in counts])


def emulate(setting: Setting, sms: int, counts: Sequence[int]) -> None:
    """Runs the kernels in the emulator. Raises AssertionError on a finding or a wrong result."""
    from cuda_emulator import Options, run_cuda

    for count in counts:
        options = Options(resident_blocks=sms * setting.blocks_per_sm)
        run = run_cuda(setting.module(count, sms), [], options=options).check()
        np.testing.assert_array_equal(run.outputs[0], np.full(setting.blocks(sms), count, np.float32))
        (launch,) = run.launches
        assert launch.cooperative == (setting.barrier == "grid") and launch.cluster[0] == setting.cluster


def table(costs: dict[Setting, float | None], clusters: Sequence[int]) -> str:
    """Write a line for every number of threads and blocks, with a column for every kind of barrier."""
    lines = [
        "microseconds a barrier",
        f"{'threads':>8} {'blocks/SM':>10} {'grid':>8} " + " ".join(f"cluster {c:<2}" for c in clusters),
    ]
    for grid in (s for s in costs if s.barrier == "grid"):
        cells = [costs[grid]]
        cells += [costs.get(Setting("cluster", grid.blocks_per_sm, grid.threads, c)) for c in clusters]
        shown = [f"{cell:.2f}" if cell is not None else "-" for cell in cells]
        row = " ".join(f"{cell:>10}" for cell in shown[1:])
        lines.append(f"{grid.threads:>8} {grid.blocks_per_sm:>10} {shown[0]:>8} {row}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks-per-sm", type=int, nargs="+", default=BLOCKS_PER_SM)
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parser.add_argument("--clusters", type=int, nargs="*", default=CLUSTERS)
    parser.add_argument("--emulate", action="store_true", help="run on the CPU, with 2 SMs and few barriers")
    args = parser.parse_args(argv)
    wanted = settings(args.blocks_per_sm, args.threads, args.clusters)
    if args.emulate:
        for setting in wanted:
            emulate(setting, 2, (0, 1, 3))
        print(f"{len(wanted)} settings run in the emulator without a finding")
        return 0
    need_gpu(instead="--emulate runs the kernels on the CPU")
    device = tvm.cuda(0)
    print(f"{device.device_name}, {device.multi_processor_count} SMs", flush=True)
    costs = {setting: measure(setting, device.multi_processor_count) for setting in wanted}
    print(table(costs, args.clusters))
    return 0


if __name__ == "__main__":
    sys.exit(main())
