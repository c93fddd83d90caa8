# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: put one bug at a time into a copy of the sources, and report whether the tests notice.

    python scripts/mutate.py                       # all mutations of scripts/mutations/*.toml
    python scripts/mutate.py --area emulator       # those of one file
    python scripts/mutate.py 'bfloat16-*' --jobs 4 # those of one name
    python scripts/mutate.py --markdown docs/mutation-testing.md   # writes the table into the page

Each job has a copy of the sources (files that git tracks, and new files that it does not ignore). The checkout is only
read. First the tests must pass on an unchanged copy. Exit codes:

- 0: every mutation is noticed (killed, or stopped at the time limit) or equivalent.
- 1: one survives, does not apply, or its tests cannot be run.
- 2: arguments or tables are wrong.
- 130: the run was interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mutating.mutations import Mutation, Outcome, TableError, listed, load, select
from mutating.page import marked_page, summary, write_table
from mutating.runner import Runner, broken_unchanged, in_parallel

ROOT = Path(__file__).resolve().parent.parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="put one bug at a time into a copy, and see whether tests notice"
    )
    parser.add_argument("names", nargs="*", help="patterns of names of mutations; default: all")
    parser.add_argument(
        "--area", action="append", default=[], help="only mutations of this table; may be repeated"
    )
    parser.add_argument("--jobs", type=int, default=2, help="test runs at a time (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds for the tests of one (default: 300)"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the mutations and whether they apply; run nothing"
    )
    parser.add_argument("--markdown", type=Path, help="a page that gets the results, between its marks")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument(
        "--table", type=Path, help="folder of tables (default: scripts/mutations of the checkout)"
    )
    return parser


def run_all(root: Path, mutations: Sequence[Mutation], jobs: int, timeout: float) -> list[Outcome]:
    """Run the mutations, and print each as it ends. An interrupt ends running tests and removes the copies."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="tvm_stitch-mutants-") as name:
        runner = Runner(root, Path(name), jobs, timeout)
        try:
            broken = broken_unchanged(runner, mutations)
            for (_, test), why in sorted(broken.items()):
                print(f"fails on unchanged sources: {test} ({why})", flush=True)

            def one(m: Mutation) -> Outcome:
                if bad := [t for t in m.tests if (m.environment, t) in broken]:
                    return Outcome(m, "error", detail=f"fails on unchanged sources: {', '.join(bad)}")
                return runner.run(m)

            for outcome in in_parallel(runner, [partial(one, m) for m in mutations]):
                outcomes.append(outcome)
                m = outcome.mutation
                print(
                    f"{outcome.result:14} {outcome.seconds:6.1f} s  {m.area}/{m.name}  {outcome.detail}",
                    flush=True,
                )
        finally:
            runner.stop()  # the copies are removed now
    return outcomes


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    args = _parser().parse_args(argv)
    root = args.root.resolve()
    try:
        if args.jobs < 1 or args.timeout <= 0:
            raise TableError("--jobs and --timeout must be above 0")
        known = load(args.table or root / "scripts" / "mutations")
        chosen = select(known, args.names, args.area)
        if args.markdown:
            marked_page(args.markdown)  # before an hour of runs
    except (TableError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.list:
        outcomes = listed(root, chosen)
        for o in outcomes:
            print(f"{o.result:14} {o.mutation.area}/{o.mutation.name}  {o.detail}")
        return int(any(o.result == "does not apply" for o in outcomes))
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcomes = run_all(root, chosen, args.jobs, args.timeout)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    print(summary(outcomes))
    for o in outcomes:
        if not o.good:
            print(f"{o.result}: {o.mutation.area}/{o.mutation.name} ({o.mutation.file}) {o.detail}")
    if args.markdown:
        write_table(args.markdown, outcomes, known)
    return int(not all(o.good for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
