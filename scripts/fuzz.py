#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzz the compiler: run random Relax functions stitched, and compare them with the fuzzer's own oracle.

    python scripts/fuzz.py --backend llvm --count 1000 --seed 0 --jobs 2
    python scripts/fuzz.py --replay tests/fuzz/corpus/*.json

Findings are shrunk, printed as TVMScript, and stored as JSON under --output. Exit code: 0 no findings, 1 findings, 2 a
usage error.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import _checkout  # noqa: F401  (puts the packages on the path)
import tvm
from fuzzing.case import Case
from fuzzing.execute import BACKENDS, Settings
from fuzzing.generate import Profile
from fuzzing.report import describe
from fuzzing.shrink import shrink
from fuzzing.workers import Answer, Work, Worker, run_all


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    options = _options(argv)
    settings = Settings(
        options.backend, stock=options.stock, nan_max=options.nan_max, lenient=options.lenient
    )
    begin = time.monotonic()
    limit = options.time_limit or float("inf")
    kinds: Counter[str] = Counter()
    symbolic = judged = elements = stitched = 0
    findings: list[Answer] = []
    works = _replayed(options, settings) if options.replay else _generated(options, settings)
    answers = run_all(
        works,
        options.jobs,
        options.timeout,
        options.renew,
        lambda: time.monotonic() - begin < limit,
        guarded=_guarded(options),
    )
    for answer in answers:
        if answer.outcome.kind == "crash" and settings.stock:
            answer = _without_stock(answer, settings, options)
        if answer.outcome.kind in ("crash", "hang"):
            answer = _attributed(answer, settings, options)
        kinds[answer.outcome.kind] += 1
        symbolic += bool(answer.case and answer.case.symbols)
        judged, elements = judged + answer.outcome.judged, elements + answer.outcome.elements
        stitched += answer.outcome.stitched > 0
        done = kinds.total()
        if answer.outcome.failed:
            findings.append(answer)
            print(f"seed {answer.seed}: {answer.outcome.kind}: {answer.outcome.detail}", flush=True)
        elif options.verbose and answer.outcome.kind != "ok":
            print(f"seed {answer.seed}: {answer.outcome.kind}: {answer.outcome.detail}", flush=True)
        if done % options.progress == 0:
            spent = time.monotonic() - begin
            print(f"{done} cases, {done / spent:.2f}/s: {_told(kinds)}", file=sys.stderr, flush=True)
    spent = time.monotonic() - begin
    done = max(1, kinds.total())
    print(
        f"{kinds.total()} cases in {spent:.0f} s ({kinds.total() / spent:.2f}/s): {_told(kinds)}; "
        f"{100 * symbolic / done:.0f} % symbolic, {100 * stitched / done:.0f} % with stitch ops, "
        f"{100 * judged / max(1, elements):.1f} % of elements judged"
    )
    if options.shrink:
        _shrink_all(findings, settings, options)
    return 1 if findings else 0


def _without_stock(answer: Answer, settings: Settings, options: argparse.Namespace) -> Answer:
    """Run a crashed case again without stock TVM, which may have caused the crash."""
    again = _again(answer, replace(settings, stock=False), options)
    if again.outcome.kind != "ok":
        return again
    return replace(
        again, outcome=replace(again.outcome, kind="tvm", detail=f"stock: {answer.outcome.detail}")
    )


def _attributed(answer: Answer, settings: Settings, options: argparse.Namespace) -> Answer:
    """Return a crash or hang, attributed to TVM if TVM alone does the same with the case."""
    alone = _again(answer, replace(settings, stock=False, only_stock=True), options)
    if alone.outcome.kind != answer.outcome.kind:
        return answer
    return replace(answer, outcome=replace(answer.outcome, kind="tvm"))


def _again(answer: Answer, settings: Settings, options: argparse.Namespace) -> Answer:
    """Run an answer's case with other settings, in a new process."""
    alone = argparse.Namespace(**{**vars(options), "seed": answer.seed, "count": 1})
    work = replace(next(_generated(alone, settings)), case=answer.case)
    worker = Worker(options.renew, guarded=_guarded(options))
    try:
        return worker.ask(work, options.timeout)
    finally:
        worker.stop()


def _guarded(options: argparse.Namespace) -> bool:
    """Elsewhere kernels do not run on the memory that is guarded."""
    return bool(options.backend == "llvm")


def _told(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _generated(options: argparse.Namespace, settings: Settings) -> itertools.chain[Work]:
    small = options.backend == "emulator"
    profile = Profile(
        symbolic=options.symbolic_share,
        elements=options.elements or (3000 if small else 40_000),
        steps=options.steps,
        runs=2 if small else 4,
        targets=_targets(options.backend),
        rare=("index_of_extreme", "scan") if small else (),
    )
    seeds = range(options.seed, options.seed + options.count)
    return itertools.chain(Work(settings, seed=seed, profile=profile) for seed in seeds)


def _targets(backend: str) -> tuple[object, ...]:
    if backend == "llvm":
        return (
            None,
            None,
            {"kind": "llvm"},
            {"kind": "llvm", "mcpu": "haswell", "opt-level": 1},
        )
    if backend == "emulator":
        return (None, None, {"kind": "cuda", "arch": "sm_75"}, {"kind": "cuda", "arch": "sm_80"})
    return (None,)


def _replayed(options: argparse.Namespace, settings: Settings) -> itertools.chain[Work]:
    return itertools.chain(Work(settings, case=case, seed=i) for i, case in enumerate(options.cases))


def _shrink_all(findings: list[Answer], settings: Settings, options: argparse.Namespace) -> None:
    worker = Worker(options.renew, guarded=_guarded(options))
    seen: Counter[str] = Counter()
    for finding in findings:
        if finding.case is None:  # after a crash or hang of the child the case is lost
            from fuzzing.generate import generate

            work = next(
                iter(_generated(argparse.Namespace(**{**vars(options), "seed": finding.seed}), settings))
            )
            finding = Answer(
                generate(finding.seed, work.profile), finding.outcome, finding.seconds, finding.seed
            )
        assert finding.case is not None
        seen[finding.outcome.kind] += 1
        case, outcome = shrink(
            finding.case, finding.outcome, settings, worker, options.timeout, options.shrink_time
        )
        text = describe(case, outcome, settings)
        print(f"\n=== seed {finding.seed}\n{text}", flush=True)
        if options.output:
            folder = Path(options.output)
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{settings.backend}-{outcome.kind}-{finding.seed}"
            (folder / f"{name}.json").write_text(case.to_json() + "\n")
            (folder / f"{name}.txt").write_text(text + "\n")
    worker.stop()


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS, default="llvm")
    parser.add_argument("--count", type=int, default=100, help="cases to make (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; case N has seed + N")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--time-limit", type=float, default=0, help="seconds after which no new case begins")
    parser.add_argument("--timeout", type=float, default=120, help="most seconds for one case")
    parser.add_argument(
        "--symbolic-share",
        type=float,
        default=0.35,
        help="of symbolic cases (default 0.35)",
    )
    parser.add_argument("--steps", type=int, default=14, help="most operators of a case")
    parser.add_argument("--elements", type=int, default=0, help="most elements of a value")
    parser.add_argument("--stock", action="store_true", help="more kernels than stock TVM's are a finding")
    parser.add_argument(
        "--nan-max",
        choices=("any", "propagate"),
        default="propagate",
        help="required result of a maximum with NaN",
    )
    parser.add_argument(
        "--lenient", action="store_true", help="do not judge comparisons with NaN, nor x - x of infinities"
    )
    parser.add_argument("--renew", type=int, default=150, help="cases after which a process is replaced")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="do not shrink findings")
    parser.add_argument("--shrink-time", type=float, default=60, help="seconds to shrink one finding")
    parser.add_argument("--output", help="folder for findings")
    parser.add_argument("--progress", type=int, default=200, help="cases between two lines of progress")
    parser.add_argument("--verbose", action="store_true", help="also print cases that TVM fails at")
    parser.add_argument(
        "--replay", nargs="+", metavar="JSON", help="check these cases instead of random ones"
    )
    options = parser.parse_args(argv)
    for name in ("count", "jobs", "timeout", "steps", "renew", "progress"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1, not {getattr(options, name)}")
    if options.backend == "cuda" and not tvm.cuda(0).exist:
        parser.error(
            "--backend cuda needs a GPU, and TVM finds none; --backend emulator runs its kernels without"
        )
    options.cases = []
    for path in options.replay or ():
        try:
            options.cases.append(Case.from_json(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, LookupError, TypeError) as error:
            parser.error(f"{path} holds no case: {error}")
    return options


if __name__ == "__main__":
    sys.exit(main())
