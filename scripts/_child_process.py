# SPDX-License-Identifier: Apache-2.0
"""Child processes that may crash: lines to and from them, variables of their environment, and their last output."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol, TypeVar

Asked = TypeVar("Asked", contravariant=True)
Answered = TypeVar("Answered", covariant=True)


class LinesOfJson:
    """A Python process that reads and writes lines of JSON. It starts with the first line that is written to it.

    Args:
        command: the file to run, and its arguments.
        environment: variables that it has besides those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._command = [sys.executable, *command]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def write(self, value: Any) -> None:
        """Write one line, to a new process if none runs. A process that just ended reads nothing."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
            )
            self._lines = queue.Queue()
            threading.Thread(target=self._collect, args=(self._process, self._lines), daemon=True).start()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def read(self, limit: float) -> Any:
        """Return the next line, or None if the process ends or writes none in ``limit`` seconds."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            return None
        return None if line is None else json.loads(line)

    def close(self) -> int | None:
        """End the process, and return its exit code, or None if it was still running."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None:
            try:
                code = self._process.wait(timeout=1.0) if self._lines.empty() else None
            except subprocess.TimeoutExpired:
                code = None
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
        return code

    @staticmethod
    def _collect(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("["):  # PyTorch and LLVM may print lines of their own
                lines.put(line)
        lines.put(None)


class Worker(Protocol[Asked, Answered]):
    """A child process that answers requests."""

    def results(self, request: Asked) -> Iterator[Answered]:
        """Yield the results of a request."""

    def close(self) -> Any:
        """End the process."""


def run_in_children(
    requests: Sequence[Asked],
    jobs: int,
    start: Callable[[], Worker[Asked, Answered]],
    heard: Callable[[Answered], None] | None = None,
) -> list[Answered]:
    """Return the results of all requests as they came, run by some child processes.

    Args:
        requests: what to run.
        jobs: number of child processes.
        start: makes a child.
        heard: called with each result as it comes, one at a time.
    """
    waiting: queue.Queue[Asked] = queue.Queue()
    for request in requests:
        waiting.put(request)
    results: list[Answered] = []
    lock = threading.Lock()

    def work() -> None:
        child = start()
        try:
            while True:
                try:
                    request = waiting.get_nowait()
                except queue.Empty:
                    return
                for result in child.results(request):
                    with lock:
                        results.append(result)
                        if heard is not None:
                            heard(result)
        finally:
            child.close()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextmanager
def environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment, for children that start in this context."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def last_words(errors: IO[Any], before: int, behind: int) -> list[str]:
    """Return the lines of a child's output around "Fatal Python error", or the last ones if it has none.

    Args:
        errors: the file that it wrote to, opened for bytes.
        before: lines in front of that one.
        behind: that line and those behind it.
    """
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    return [line for line in lines[max(0, fatal - before) : fatal + behind] if line]
