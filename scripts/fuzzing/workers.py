# SPDX-License-Identifier: Apache-2.0
"""Check cases in child processes: a crash or a hang costs one case, and memory is bounded."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from _child_process import environment, last_words

from .case import Case
from .execute import Outcome, Settings, check, told
from .guard import guard

_starting = threading.Lock()


@dataclass(frozen=True)
class Work:
    """A case to check, or the seed and profile to make one of."""

    settings: Settings
    case: Case | None = None
    seed: int = 0
    profile: Any = None


@dataclass(frozen=True)
class Answer:
    """A case and its outcome."""

    case: Case | None
    outcome: Outcome
    seconds: float
    seed: int = 0


def answer(work: Work) -> Answer:
    """Runs in the child."""
    from .build import Unbuildable
    from .generate import generate

    begin = time.monotonic()
    case = work.case
    try:
        case = case or generate(work.seed, work.profile)
        outcome = check(case, work.settings)
    except Unbuildable as error:
        outcome = Outcome("invalid", str(error))
    except Exception as error:
        outcome = Outcome("fuzzer", told(error))  # a fault of the fuzzer's own
    return Answer(case, outcome, time.monotonic() - begin, work.seed)


class Worker:
    """A child process that answers pieces of work, replaced after ``renew`` of them.

    task: the module and function that answer, such as ``"fuzzing.workers:answer"``.
    guarded: whether a kernel that touches memory beyond its tensors ends the process.
    """

    def __init__(self, renew: int = 150, task: str = "fuzzing.workers:answer", guarded: bool = False) -> None:
        self.renew, self.task, self.guarded = renew, task, guarded
        self.process: Any = None
        self.left = 0

    def ask(self, work: Work, timeout: float) -> Answer:
        """Return the child's answer. A crash or a hang is one too."""
        if self.process is None or self.left == 0:
            self.stop()
            self._start()
        self.left -= 1
        begin = time.monotonic()
        try:
            self.pipe.send(work)
            if self.pipe.poll(timeout):
                return self.pipe.recv()
            outcome = Outcome("hang", f"no answer in {timeout:.0f} s")
        except (EOFError, ConnectionError):
            self.process.join(5)
            died = f"the process died with exit code {self.process.exitcode}"
            outcome = Outcome("crash", "; ".join([died, *last_words(self.errors, 3, 8)]))
        self.stop()
        return Answer(work.case, outcome, time.monotonic() - begin, work.seed)

    def _start(self) -> None:
        self.errors = tempfile.NamedTemporaryFile()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        # Fresh memory holds a pattern instead of zeros, so unwritten elements show. Parallel loops run inline:
        # there are as many workers as cores.
        added = {"MALLOC_PERTURB_": "90", "TVM_NUM_THREADS": "1", "TVM_LOG_DEBUG": ""}
        library = guard() if self.guarded else None
        if library is not None:
            added["LD_PRELOAD"] = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
        with environment(added):
            self.process = context.Process(
                target=_serve,
                args=(theirs, self.errors.name, self.task, list(sys.path)),
                daemon=True,
            )
            self.process.start()
        theirs.close()
        self.left = self.renew

    def stop(self) -> None:
        """End the child, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.errors.close()
            self.process = None


def _serve(pipe: Any, errors: str, task: str, path: list[str]) -> None:
    sys.path[:] = path
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)  # TVM prints many unrelated warnings
    faulthandler.enable()
    module, function = task.split(":")
    answering = getattr(importlib.import_module(module), function)
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        pipe.send(answering(work))


def run_all(
    works: Iterator[Work],
    jobs: int,
    timeout: float,
    renew: int = 150,
    go_on: Callable[[], bool] = lambda: True,
    task: str = "fuzzing.workers:answer",
    guarded: bool = False,
) -> Iterator[Answer]:
    """Yield answers in order of the work, made by ``jobs`` processes, until ``go_on`` returns false."""
    local = threading.local()
    workers: list[Worker] = []

    def one(work: Work) -> Answer | None:
        if not go_on():
            return None
        worker = getattr(local, "worker", None)
        if worker is None:
            worker = local.worker = Worker(renew, task, guarded)
            workers.append(worker)
        with _starting:  # a child inherits the process's environment at its start
            if worker.process is None or worker.left == 0:
                worker.stop()
                worker._start()
        return worker.ask(work, timeout)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            pending = []
            for work in works:
                pending.append(pool.submit(one, work))
                if len(pending) >= 4 * jobs:
                    ended = pending.pop(0).result()
                    if ended is None:
                        break
                    yield ended
            for future in pending:
                ended = future.result()
                if ended is not None:
                    yield ended
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.stop()
