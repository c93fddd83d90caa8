# SPDX-License-Identifier: Apache-2.0
"""Compare launched kernels and kernel time of all compilers, on the workloads with reductions across rows.

    python scripts/bench_grid.py
    python scripts/bench_grid.py --cases layer_norm_backward,column_sum --contenders stitched,inductor --json out.json

Each contender has a process of its own. All compile at the same time first. Then they are timed one at a time, with the
cache flushed before every call. The cell of a contender that fails, gives wrong numbers or takes too long says so.
Inputs are drawn on the device, and results are compared with PyTorch's in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import _checkout  # noqa: F401  (puts the packages on the path)
from _gpu import need_gpu
from _grid_contenders import MAKERS, work
from _grid_jobs import Answer, Job, Target
from _table import aligned

from stitch_testing.random.isolated import Child, Crash
from tvm_stitch.testing.workloads.grid_case import GridCase
from tvm_stitch.testing.workloads.grid_cases import grid_cases

DEFAULT = "stitched,stock,inductor,xla"
#: Not competitors: the copy that sets the scale, and stitching itself.
_NO_PEERS = frozenset({"stitched", "copy", "eager"})


@dataclass
class Row:
    """The results of one case: an answer of every contender."""

    case: GridCase
    answers: dict[str, Answer] = field(default_factory=dict)

    def seconds(self, name: str) -> float | None:
        """Return a contender's time, or None if it has none."""
        answer = self.answers.get(name)
        return answer.measured.seconds if answer and answer.measured else None

    def best_peer(self) -> float | None:
        """Return the least time of the others."""
        times = [t for name in self.answers if name not in _NO_PEERS and (t := self.seconds(name))]
        return min(times, default=None)


class Worker:
    """A contender's process, started again after it died."""

    def __init__(self, function: Callable[[Job], Answer] = work) -> None:
        self._function = function
        self._child: Child | None = None

    def ask(self, job: Job, timeout: float) -> Answer:
        """Return the answer, or one that says why the process gave none."""
        if self._child is None or not self._child.alive:
            self._child = Child(self._function)
        start = time.perf_counter()
        result = self._child.ask(job, timeout)
        if isinstance(result, Crash):
            return Answer(result.reason, seconds=time.perf_counter() - start)
        return result

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()


def run(
    chosen: Iterable[int],
    names: Sequence[str],
    scale: str,
    target: Target,
    limit: float,
    deadline: float,
    start: Callable[[], Worker] = Worker,
) -> list[Row]:
    """Prepare all cases by all contenders at once, then time them one by one. Nothing starts after ``deadline``."""
    every = grid_cases(scale)
    rows = {place: Row(every[place]) for place in chosen}
    workers = {name: start() for name in names}

    def step(kind: str, name: str, place: int) -> Answer:
        left = deadline - time.monotonic()
        if left <= 0:
            return Answer("no time left")
        job = Job("measure" if kind == "measure" else "prepare", name, place, scale, target)
        answer = workers[name].ask(job, min(limit, left))
        told = answer.problem or "done"
        print(
            f"{kind} {rows[place].case.label} {name}: {told[:200]} ({answer.seconds:.1f} s)", file=sys.stderr
        )
        return answer

    def prepare(name: str) -> None:
        for place, row in rows.items():
            row.answers[name] = step("prepare", name, place)

    try:
        with ThreadPoolExecutor(len(names)) as pool:
            for _ in pool.map(prepare, names):
                pass
        for place, row in rows.items():
            for name in names:
                if row.answers[name].problem is None:
                    row.answers[name] = step("measure", name, place)
    finally:
        for worker in workers.values():
            worker.stop()
    return list(rows.values())


def _cell(answer: Answer | None) -> str:
    """Write kernels (and copies or memsets after a plus sign) and microseconds (~ for wall time), or the failure."""
    if answer is None:
        return "-"
    if answer.measured is None:
        problem = answer.problem or "not timed"
        for words, short in (
            ("wrong:", "WRONG"),
            ("no answer", "too slow"),
            ("no time", "no time"),
            ("died", "CRASH"),
        ):
            if words in problem:
                return short
        return "FAILED"
    measured = answer.measured
    if measured.kernels is None:
        return f"~{measured.seconds * 1e6:.1f}"
    launched = f"{measured.kernels}+{measured.copies}" if measured.copies else str(measured.kernels)
    return f"{launched}: {measured.seconds * 1e6:.1f}"


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Write a line for each case: kernels and microseconds of all contenders, and stitching against copy and peers."""
    shown = [name for name in names if name != "copy"]
    head = ["case", "MB", "copy us", *shown, "best peer/stitched", "% of copy"]
    body = []
    for row in rows:
        mine, copy, best = row.seconds("stitched"), row.seconds("copy"), row.best_peer()
        body.append(
            [
                row.case.label,
                f"{row.case.bytes_least() / 1e6:.1f}",
                f"{copy * 1e6:.1f}" if copy else "-",
                *(_cell(row.answers.get(name)) for name in shown),
                f"{best / mine:.2f}" if best and mine else "-",
                f"{100 * copy / mine:.0f}" if copy and mine else "-",
            ]
        )
    return aligned(head, body)


def as_json(rows: Sequence[Row]) -> str:
    """Write all measurements, and every problem in full."""
    return json.dumps(
        [
            {
                "case": row.case.name,
                "sizes": dict(row.case.sizes),
                "bytes_least": row.case.bytes_least(),
                "answers": {name: asdict(answer) for name, answer in row.answers.items()},
            }
            for row in rows
        ],
        indent=1,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=["cuda", "llvm"], default="cuda")
    parser.add_argument("--scale", choices=["test", "gpu"], default="gpu")
    parser.add_argument("--cases", help="comma-separated names or labels; all by default")
    parser.add_argument("--contenders", default=DEFAULT, help=f"comma-separated, of {', '.join(MAKERS)}")
    parser.add_argument(
        "--time-limit", type=float, default=90, help="most seconds of a contender for one step"
    )
    parser.add_argument(
        "--budget", type=float, default=1e9, help="most seconds for all cases; later ones are left out"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    names = [*args.contenders.split(","), *(["copy"] if "copy" not in args.contenders else [])]
    if unknown := set(names) - set(MAKERS):
        parser.error(f"unknown contenders {', '.join(sorted(unknown))}: choose from {', '.join(MAKERS)}")
    every = grid_cases(args.scale)
    chosen = list(range(len(every)))
    if args.cases:
        wanted = set(_split_labels(args.cases))
        if unknown := wanted - {case.name for case in every} - {case.label for case in every}:
            known = ", ".join(case.label for case in every)
            parser.error(f"unknown cases {', '.join(sorted(unknown))}: choose from {known}")
        chosen = [place for place, case in enumerate(every) if {case.name, case.label} & wanted]
    need_gpu(args.target, "--target llvm times this machine's CPU")
    deadline = time.monotonic() + args.budget
    rows = run(chosen, names, args.scale, args.target, args.time_limit, deadline)
    if args.json:
        Path(args.json).write_text(as_json(rows))
    for row in rows:
        for name, answer in row.answers.items():
            if answer.problem:
                print(f"{row.case.label}: {name}: {answer.problem[:300]}")
    print(table(rows, names))
    mine = [row.answers["stitched"] for row in rows if "stitched" in row.answers]
    return 1 if any(answer.problem for answer in mine) else 0


def _split_labels(text: str) -> list[str]:
    """Split names at commas, but not inside a label's angle brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


if __name__ == "__main__":
    sys.exit(main())
