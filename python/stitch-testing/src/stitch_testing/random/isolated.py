# SPDX-License-Identifier: Apache-2.0
"""Run checks in child processes, so that a crash or a hang is a finding and not the end of a long run."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Crash(Generic[Item]):
    """The outcome of an item whose process died, or gave no answer in time."""

    item: Item
    reason: str


def run_isolated(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int = 1,
    timeout: float = 600.0,
    renew: Callable[[Result], bool] = lambda result: False,
) -> Iterator[Result | Crash[Item]]:
    """Yield the result of ``function`` for every item, in order, computed by ``jobs`` child processes.

    Parameters
    ----------
    function : a function of a module, because it is sent by name. Its items and results are pickled.
    timeout : the most seconds of one item. The first item of a process includes the imports.
    renew : returns whether a result makes its process unusable for another item, as after a GPU fault.
    """
    local = threading.local()
    children: list[Child] = []

    def one(item: Item) -> Result | Crash[Item]:
        child = getattr(local, "child", None)
        if child is None or not child.alive:
            child = local.child = Child(function)
            children.append(child)
        result = child.ask(item, timeout)
        if not isinstance(result, Crash) and renew(result):
            child.stop()
        return result

    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(one, items)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for child in children:
                child.stop()


class Child:
    """A process that answers one item after another. Its modules keep their state between items.

    ``alive`` is true while it accepts items, which ends with a crash, a time-out or :meth:`stop`.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(function, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.alive = True

    def ask(self, item: Any, timeout: float) -> Any:
        """Return the function's result for ``item``, or a :class:`Crash` on death or after ``timeout`` seconds."""
        try:
            self._pipe.send(item)
            if self._pipe.poll(timeout):
                return self._pipe.recv()
            reason = f"no answer in {timeout:.0f} s"
        except (EOFError, ConnectionError):
            self._process.join(5)
            reason = f"the process died with exit code {self._process.exitcode}"
        self.stop()
        return Crash(item, reason)

    def stop(self) -> None:
        """End the process, even if it is at work."""
        if self.alive:
            self.alive = False
            self._process.kill()
            self._process.join()
            self._pipe.close()


def _serve(function: Callable[[Any], Any], pipe: Any) -> None:
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        pipe.send(function(item))
