# SPDX-License-Identifier: Apache-2.0
"""Runs of tests in copies of the sources, each with one mutation or none."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .mutations import ENVIRONMENTS, Mutation, Outcome, TableError

#: The folders of the packages, from the checkout's root.
SOURCES = ("", "python/cuda-emulator/src", "python/stitch-testing/src")
_IGNORED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", "dist", "*.egg-info", ".*_cache")


def copy_sources(root: Path, to: Path) -> None:
    """Copy the checkout's tracked and new files. Outside of git, copy all files but build outputs."""
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
                write_source(path, changed)
                code, printed = self.test(tree, mutation.environment, mutation.tests, self.timeout)
            finally:
                write_source(path, original)
        result, detail = verdict(code, printed)
        return Outcome(mutation, result, time.monotonic() - started, detail)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a test run and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def write_source(path: Path, text: str) -> None:
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


def in_parallel(runner: Runner, tasks: Sequence[Callable[[], Any]]) -> Iterator[Any]:
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
    failed = [r for r in in_parallel(runner, [partial(check, e, t) for e, t in together]) if r[2]]
    alone = [(e, [t]) for e, tests, _ in failed for t in tests]
    again = in_parallel(runner, [partial(check, e, t) for e, t in alone])
    return {(e, t[0]): why for e, t, why in again if why}
