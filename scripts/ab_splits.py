#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times long rows on a GPU with the blocks and threads that the mapping chooses, and with others forced on it.

    python scripts/ab_splits.py
    python scripts/ab_splits.py --cases rms_norm --columns 65536 --splits 1,4,8 --threads 256,512 --json FILE

The workloads are those of bench_rows.py. Each mapping has a line: blocks and threads a row, blocks that a
multiprocessor must hold (0: as many as fit), values in registers between passes, and the kernel's time in microseconds.
The cache is flushed before every call. * marks the planner's choice. The last column is the time relative to a copy's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import torch
import tvm
from _flushed import FlushedTimer
from _gpu import need_gpu
from _table import aligned
from bench_rows import DTYPES, ROWS, Workload, copy, imported, problem, workloads
from tvm import relax

from tvm_stitch.graph.extent import ByExtent
from tvm_stitch.plan import in_block
from tvm_stitch.plan.gpu.mapping import ColumnMapping, RowMapping, Storage
from tvm_stitch.plan.gpu.tile import kept_in_shared, read_again_from_cache
from tvm_stitch.plan.iteration.loops import Keep, schedule
from tvm_stitch.plan.rows.candidate import Candidate
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax.pipeline import pipeline

LEAST, MOST = 8, 128
"""Least and most elements of a thread in the mappings to try."""
SHARED = "SHARED"
"""Inputs are kept in shared memory, as in ``Keep.LOADS``."""
REGISTERS, OTHER_REGISTERS = 65536, 24
"""Registers of a multiprocessor, and of a thread besides its kept values."""


@dataclass(frozen=True)
class Forced:
    """A mapping: ``splits`` blocks of ``threads`` a row, ``resident`` of them on a multiprocessor at least."""

    splits: int
    threads: int
    resident: int
    keep: str

    def apply(self, alignment: Any, device: Any) -> tuple[Any, RowMapping]:
        """Return the schedule and mapping of rows of static length."""
        sched = schedule(alignment, Keep.LOADS if self.keep == SHARED else Keep[self.keep])
        forced = read_again_from_cache(alignment, sched, device, self.splits, self.threads)
        forced = replace(forced, blocks_per_sm=self.resident)
        if self.keep == SHARED:
            return sched, kept_in_shared(sched, forced, device)
        if self.keep == "NOTHING":
            return sched, forced
        # All of a thread's vectors at once, which stay in its registers.
        spaces = ByExtent(
            (e, ColumnMapping(m.vector, self._vectors(e, m))) for e, m in forced.columns.items()
        )
        return sched, replace(forced, columns=spaces, storage=Storage.REGISTERS)

    def propose(self, alignment: Any, device: Any, _config: Any) -> Candidate:
        """Propose the mapping as the only candidate."""
        return Candidate(alignment, *self.apply(alignment, device), 0.0)

    def _vectors(self, columns: Any, m: ColumnMapping) -> int:
        return -(-int(columns) // (self.splits * self.threads * m.vector))


def _find(case: str, columns: int, dtype: str) -> Workload:
    return next(iter(workloads([case], [columns], dtype=dtype)))


def build(case: str, columns: int, dtype: str, forced: Forced | None, target: Any, path: str) -> Forced:
    """Compile a workload into a library, and return the mapping that it got."""
    work = _find(case, columns, dtype)
    recorder = Recorder()
    chosen = in_block.STRATEGIES
    if forced is not None:
        in_block.STRATEGIES = (forced.propose,)
    try:
        module = imported(work, work.inputs())
        built = tvm.compile(
            module, tvm.target.Target(target), relax_pipeline=pipeline(target, recorder=recorder)
        )
    finally:
        in_block.STRATEGIES = chosen
    built.export_library(path)
    (plan,) = recorder.plans.values()
    m = plan.stage.row_mapping
    kept = m.storage.name if not m.keep else "ALL" if plan.stage.schedule.kept_values else "LOADS"
    kept += " (shared)" if m.shared else ""
    return Forced(m.row_splits, m.threads, m.blocks_per_sm, kept)


def candidates(
    columns: int, words: float, splits: Sequence[int], threads: Sequence[int], keeps: Sequence[str]
) -> Iterator[Forced]:
    """Return the mappings to try, if an element takes so many registers."""
    for s in splits:
        for t in threads:
            for keep in keeps:
                if keep == SHARED:  # few registers: shared memory bounds the blocks
                    if LEAST <= columns / (s * t) <= 2 * MOST:
                        yield Forced(s, t, 0, keep)
                    continue
                elements = 0 if keep == "NOTHING" else columns / (s * t)
                if keep != "NOTHING" and not LEAST <= elements <= MOST:
                    continue
                bounds = {n for n in (1024 // t, 1536 // t, 2048 // t) if n > 1}
                needed = elements * words + OTHER_REGISTERS
                for resident in (0, *sorted(n for n in bounds if REGISTERS // (n * t) >= needed)):
                    yield Forced(s, t, resident, keep)


def bench(
    work: Workload, built: dict[str, Future[Forced]], timer: FlushedTimer
) -> tuple[dict[str, float], dict[str, str]]:
    """Return seconds by library, a copy's too, and the reasons why others have none."""
    inputs = [x.cuda() for x in work.inputs()]
    expected = work.expected(inputs)
    device = tvm.cuda(0)
    times, failed = {}, {}
    ours = [tvm.runtime.from_dlpack(x) for x in inputs]

    for path, future in built.items():
        try:
            future.result()
            main = relax.VirtualMachine(tvm.runtime.load_module(path), device)["main"]
            wrong = problem(torch.from_dlpack(main(*ours)), expected)
            if wrong:
                failed[path] = wrong
                continue
            times[path] = timer(partial(main, *ours)).seconds
        except Exception as error:  # no kernel can have this mapping
            failed[path] = f"{type(error).__name__}: {' '.join(str(error).split())[-100:]}"
    times["copy"] = timer(copy(work.bytes_least(inputs, work.function(*inputs)))).seconds
    return times, failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(ROWS), help="comma-separated, as all of these lists")
    parser.add_argument("--columns", default="32768,65536,131072,262144")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--splits", default="1,2,4,8")
    parser.add_argument("--threads", default="256,512,1024")
    parser.add_argument(
        "--keep",
        default="ALL,LOADS",
        help="values in registers: ALL, LOADS, NOTHING; SHARED: inputs in shared memory",
    )
    parser.add_argument("--at-once", type=int, default=8, help="compilations at the same time")
    parser.add_argument(
        "--best", type=int, default=0, help="number of mappings to print for each workload; 0: all"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    options = parser.parse_args(argv)
    for given, known in ((options.cases, ROWS), (options.keep, [*Keep.__members__, SHARED])):
        if unknown := [name for name in given.split(",") if name not in known]:
            parser.error(f"unknown {unknown[0]}: choose from {', '.join(known)}")
    numbers = ",".join((options.columns, options.splits, options.threads)).split(",")
    if not all(n.isdigit() and int(n) for n in numbers):
        parser.error("--columns, --splits and --threads: positive numbers, separated by commas")
    need_gpu()
    splits, threads = ([int(n) for n in text.split(",")] for text in (options.splits, options.threads))
    target = str(tvm.target.Target.from_device(tvm.cuda(0)))
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.at_once, multiprocessing.get_context("spawn")) as pool,
    ):
        asked: dict[tuple[str, int], dict[str, Future[Forced]]] = {}
        for case in options.cases.split(","):
            for columns in map(int, options.columns.split(",")):
                words = DTYPES[options.dtype].itemsize / 4
                ways: list[Forced | None] = [None]
                ways += candidates(columns, words, splits, threads, options.keep.split(","))
                asked[case, columns] = {
                    (path := f"{folder}/{case}_{columns}_{i}.so"): pool.submit(
                        build, case, columns, options.dtype, way, target, path
                    )
                    for i, way in enumerate(ways)
                }
        timer = FlushedTimer()
        for (case, columns), built in asked.items():
            work = _find(case, columns, options.dtype)
            times, failed = bench(work, built, timer)
            for path, why in failed.items():
                print(f"{work.name}: {Path(path).stem} left out: {why}", flush=True)
            ranked = sorted((p for p in times if p != "copy"), key=lambda p: times[p])
            for rank, path in enumerate(ranked):
                chosen = path == next(iter(built))
                row = {**asdict(built[path].result()), "workload": work.name, "us": times[path] * 1e6}
                row |= {"chosen": chosen, "copy": times["copy"] / times[path], "rank": rank}
                rows.append(row)
            torch.cuda.empty_cache()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    head = ["", "blocks", "threads", "resident", "kept", "us", "", "of copy"]
    body = [
        [r["workload"], str(r["splits"]), str(r["threads"]), str(r["resident"]), r["keep"], f"{r['us']:.1f}",
         "*" if r["chosen"] else "", f"{r['copy']:.2f}"]
        for r in rows
        if not options.best or r["rank"] < options.best or r["chosen"]
    ]  # fmt: skip
    print(aligned(head, body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
