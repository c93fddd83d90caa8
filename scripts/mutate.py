# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: put one bug at a time into a copy of the sources, and report whether the tests notice.

    python scripts/mutate.py                       # all mutations of scripts/mutations/*.toml
    python scripts/mutate.py --area emulator       # those of one file
    python scripts/mutate.py 'bfloat16-*' --jobs 4 # those of one name
    python scripts/mutate.py --markdown docs/mutation-testing.md   # writes the table into the page

Each job has a copy of the sources (files that git tracks, and new files that it does not ignore). The checkout is only
read. First the tests must pass on an unchanged copy. Exit code: 0 if every mutation is noticed (killed, or stopped at
the time limit) or equivalent, 1 if one survives, does not apply, or its tests cannot be run, 2 for wrong arguments and
tables, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The folders of the packages, from the checkout's root.
SOURCES = ("", "python/cuda-emulator/src", "python/stitch-testing/src")
#: The Python of each environment, from the checkout's root.
ENVIRONMENTS = {"relax": ".venv/bin/python", "relay": ".venv-relay/bin/python"}
MARKS = ("<!-- mutants -->", "<!-- /mutants -->")
_IGNORED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", "dist", "*.egg-info", ".*_cache")
_ALLOWED = {"name", "file", "old", "new", "tests", "environment", "occurrence", "equivalent"}


class TableError(ValueError):
    """A table of mutations is wrong; the text says where and why."""


@dataclass(frozen=True)
class Mutation:
    """One bug: in ``file`` the text ``old`` becomes ``new``, and ``tests`` should notice.

    old: occurs once in the file, or ``occurrence`` (from 0) selects one.
    environment: the one of ENVIRONMENTS in which the tests run.
    equivalent: the reason why no test can notice, if so; such a mutation is listed and not run.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    environment: str = "relax"
    occurrence: int | None = None
    equivalent: str = ""

    def apply(self, text: str) -> str:
        """Return the file's text with the bug. A ValueError says why if the bug does not apply."""
        count = text.count(self.old)
        if self.occurrence is None and count != 1:
            raise ValueError(f"the old text occurs {count} times in {self.file}")
        if self.occurrence is not None and not self.occurrence < count:
            raise ValueError(f"the old text occurs {count} times in {self.file}: no number {self.occurrence}")
        pieces = text.split(self.old)
        at = (self.occurrence or 0) + 1
        changed = self.old.join(pieces[:at]) + self.new + self.old.join(pieces[at:])
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise ValueError(f"the new text is not Python: {error}") from error
        return changed


@dataclass(frozen=True)
class Outcome:
    """The result of a mutation: killed, timeout, survived, equivalent, does not apply or error; and details."""

    mutation: Mutation
    result: str
    seconds: float = 0.0
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether the result needs no action."""
        return self.result in ("killed", "timeout", "equivalent")


def _entry(area: str, raw: dict[str, Any]) -> Mutation:
    where = f"{area}: {raw.get('name', 'a mutation without a name')}"
    missing = {"name", "file", "old", "new"} - raw.keys()
    unknown = raw.keys() - _ALLOWED
    if missing or unknown:
        raise TableError(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    made = Mutation(area, **{**raw, "tests": tuple(raw.get("tests", ()))})
    if made.old == made.new or not made.old:
        raise TableError(f"{where}: the new text is the old one, or the old one is empty")
    if made.environment not in ENVIRONMENTS:
        raise TableError(f"{where}: environment {made.environment!r} is none of {', '.join(ENVIRONMENTS)}")
    if not made.tests and not made.equivalent:
        raise TableError(f"{where}: it names no tests and does not say why it is equivalent")
    return made


def load(folder: Path) -> list[Mutation]:
    """Read the mutations of all tables of a folder. A table's name is their area.

    Raises:
        TableError: if a table cannot be read, an entry is not complete, or two have one name.
    """
    found: list[Mutation] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise TableError(f"{path.name}: {error}") from error
        found += [_entry(path.stem, entry) for entry in raw.get("mutation", [])]
    names = [m.name for m in found]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise TableError(f"several mutations are called {', '.join(twice)}")
    if not found:
        raise TableError(f"no mutations in {folder}")
    return found


def copy_sources(root: Path, to: Path) -> None:
    """Copy the checkout's tracked and new files; outside of git all files but build outputs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        shutil.copytree(root, to, ignore=_IGNORED, symlinks=True, dirs_exist_ok=True)
        return
    for name in listed.stdout.decode().split("\0"):
        source = root / name
        if name and source.is_file() and not source.is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name)


class Runner:
    """Runs tests in copies of the sources. ``stop`` ends running tests, from any thread."""

    def __init__(self, root: Path, folder: Path, jobs: int, timeout: float) -> None:
        self.root, self.folder, self.jobs, self.timeout = root, folder, jobs, timeout
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._trees: queue.Queue[Path] = queue.Queue()
        for job in range(jobs):
            tree = folder / f"tree{job}"
            tree.mkdir()
            copy_sources(root, tree)
            self._trees.put(tree)

    @contextmanager
    def tree(self) -> Iterator[Path]:
        """Take a copy that no other job uses."""
        tree = self._trees.get()
        try:
            yield tree
        finally:
            self._trees.put(tree)

    def stop(self) -> None:
        """End running tests. None starts afterwards."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def test(
        self, tree: Path, environment: str, tests: Sequence[str], timeout: float
    ) -> tuple[int | None, str]:
        """Run tests, and return pytest's exit code (None: the time was up) and its output."""
        python = self.root / ENVIRONMENTS[environment]
        if not python.exists():
            if environment != "relax":
                raise TableError(f"{ENVIRONMENTS[environment]} is missing: run `make venv-{environment}`")
            python = Path(sys.executable)
        command = [str(python), "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "--tb=line"]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(tree / source) for source in SOURCES),
            "TVM_STITCH_CACHE_DIR": str(self.folder / "cache"),
            "CUDA_EMULATOR_CACHE_DIR": str(self.folder / "cache" / "emulator"),
            "COLUMNS": "200",
        }
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                [*command, "-p", "no:cacheprovider", *tests], cwd=tree, env=env, encoding="utf-8", errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        try:
            printed, _ = process.communicate(timeout=timeout)
            return process.returncode, printed
        except subprocess.TimeoutExpired:
            _kill(process)
            printed, _ = process.communicate()
            return None, printed
        finally:
            with self._lock:
                self._running.discard(process)

    def run(self, mutation: Mutation) -> Outcome:
        """Put the bug into a copy, run its tests, and put the copy right again."""
        if mutation.equivalent:
            return Outcome(mutation, "equivalent", detail=mutation.equivalent)
        started = time.monotonic()
        with self.tree() as tree:
            path = tree / mutation.file
            try:
                original = path.read_text(encoding="utf-8")
                changed = mutation.apply(original)
            except (OSError, ValueError) as error:
                return Outcome(mutation, "does not apply", detail=str(error))
            try:
                _write(path, changed)
                code, printed = self.test(tree, mutation.environment, mutation.tests, self.timeout)
            finally:
                _write(path, original)
        result, detail = verdict(code, printed)
        return Outcome(mutation, result, time.monotonic() - started, detail)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a test run and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _write(path: Path, text: str) -> None:
    """Write a source, and delete its compiled form: Python does not see a change within one second."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def verdict(code: int | None, printed: str) -> tuple[str, str]:
    """Return the result that pytest's exit code means, and the first failed test or the reason."""
    if code is None:
        return "timeout", ""
    if code == 0:
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    if code in (1, 2):
        return "killed", failed[1] if failed else ""
    if code < 0:
        return "killed", f"signal {-code}"
    last = printed.strip().splitlines()
    return "error", f"pytest: exit code {code}: {last[-1] if last else ''}"


def _in_parallel(runner: Runner, tasks: Sequence[Callable[[], Any]]) -> Iterator[Any]:
    """Yield the tasks' results as they end. If one raises, or the user interrupts, the others' tests are ended."""
    with ThreadPoolExecutor(runner.jobs) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            runner.stop()
            for future in futures:
                future.cancel()
            raise


def broken_unchanged(runner: Runner, mutations: Sequence[Mutation]) -> dict[tuple[str, str], str]:
    """Return the (environment, test) pairs that fail on unchanged sources, with the failure."""
    wanted = sorted({(m.environment, t) for m in mutations if not m.equivalent for t in m.tests})

    def check(environment: str, tests: list[str]) -> tuple[str, list[str], str]:
        with runner.tree() as tree:
            code, printed = runner.test(tree, environment, tests, max(600, runner.timeout * len(tests)))
        return environment, tests, "" if code == 0 else verdict(code, printed)[1] or "the time was up"

    together = [
        (environment, part)
        for environment in ENVIRONMENTS
        for names in [[t for e, t in wanted if e == environment]]
        for part in (names[i :: runner.jobs] for i in range(runner.jobs))
        if part
    ]
    failed = [r for r in _in_parallel(runner, [partial(check, e, t) for e, t in together]) if r[2]]
    alone = [(e, [t]) for e, tests, _ in failed for t in tests]
    again = _in_parallel(runner, [partial(check, e, t) for e, t in alone])
    return {(e, t[0]): why for e, t, why in again if why}


Row = tuple[str, str]
"""Area and name of a mutation, which order a table."""


def table(outcomes: Sequence[Outcome], kept: Mapping[Row, str] | None = None) -> str:
    """Write a Markdown table, by area and name. ``kept`` are results of mutations that were not run."""
    results = dict(kept or {})
    for o in outcomes:
        result = f"equivalent: {o.detail}" if o.result == "equivalent" else o.result
        results[o.mutation.area, o.mutation.name] = result
    rows = ["| area | mutation | result |", "|---|---|---|"]
    rows += [f"| {area} | `{name}` | {result} |" for (area, name), result in sorted(results.items())]
    return "\n".join(rows) + "\n"


def rows_of(text: str) -> dict[Row, str]:
    """Read the results in a table."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:4]]
        if len(cells) == 3 and cells[1].startswith("`"):
            found[cells[0], cells[1].strip("`")] = cells[2]
    return found


def summary(outcomes: Sequence[Outcome]) -> str:
    """Count the mutations by result."""
    results = [o.result for o in outcomes]
    return f"{len(results)} mutations: " + ", ".join(
        f"{results.count(r)} {r}" for r in sorted(set(results), key=results.index)
    )


def marked_page(page: Path) -> str:
    """Read the text of a page that has the marks of a table.

    Raises:
        ValueError: if it has none.
        OSError: if it cannot be read.
    """
    text = page.read_text(encoding="utf-8")
    if not all(text.count(mark) == 1 for mark in MARKS):
        raise ValueError(f"{page} needs the lines {' and '.join(MARKS)}, once each")
    return text


def write_table(page: Path, outcomes: Sequence[Outcome], known: Collection[Mutation]) -> None:
    """Put the table between the marks of a page. Rows of ``known`` mutations that were not run remain.

    Raises:
        ValueError: if the page has no marks.
    """
    text = marked_page(page)
    before, rest = text.split(MARKS[0])
    old, after = rest.split(MARKS[1])
    names = {(m.area, m.name) for m in known}
    kept = {row: result for row, result in rows_of(old).items() if row in names}
    page.write_text(f"{before}{MARKS[0]}\n{table(outcomes, kept)}{MARKS[1]}{after}", encoding="utf-8")


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


def select(mutations: Sequence[Mutation], names: Sequence[str], areas: Sequence[str]) -> list[Mutation]:
    """Select mutations whose name matches a pattern and whose area is listed. An empty list means all.

    Raises:
        TableError: if a pattern or area matches nothing.
    """
    known = {m.area for m in mutations}
    unmatched = [n for n in names if not any(fnmatch.fnmatchcase(m.name, n) for m in mutations)]
    if unmatched or set(areas) - known:
        raise TableError(
            f"no mutation or area is called {', '.join([*unmatched, *sorted(set(areas) - known)])}"
        )
    return [
        m
        for m in mutations
        if (not areas or m.area in areas)
        and (not names or any(fnmatch.fnmatchcase(m.name, n) for n in names))
    ]


def listed(root: Path, mutations: Sequence[Mutation]) -> list[Outcome]:
    """List each mutation as "applies", "does not apply" or "equivalent"."""
    found = []
    for m in mutations:
        try:
            m.apply((root / m.file).read_text(encoding="utf-8"))
            found.append(Outcome(m, "equivalent" if m.equivalent else "applies", detail=m.equivalent))
        except (OSError, ValueError) as error:
            found.append(Outcome(m, "does not apply", detail=str(error)))
    return found


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

            for outcome in _in_parallel(runner, [partial(one, m) for m in mutations]):
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
    """Run the command; returns its exit code."""
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
