# SPDX-License-Identifier: Apache-2.0
"""A separate process for each contender of a comparison, of which only one runs at a time.

Threads of one runtime spin for milliseconds after a call, in case there is more to do. They would take the cores of the
runtime that is called next, in the same process or in another one. So processes are stopped while it is not their
turn.

The processes stay in the session of the command, with process groups of their own. Linux shares processors between
sessions first (autogroups, sched(7)). On a busy machine two threads of a session of their own stay on one processor
much longer: next to one other program, on two processors, calls of PyTorch took 100 ms there, and 0.6 ms here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from typing import Any

from ...support.cores import without_our_choice
from ..errors import Failure, UsageError
from .ready import Unavailable

_CHILD = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from tvm_stitch.cli.contenders.served import serve; serve(int(sys.argv[1]))"
)
_NOT_SENT = ("check", "run")
"""Functions of the command line, which no process needs to be sent."""


class Process:
    """The process of one contender. It runs after it was made and in its turns, and is stopped otherwise."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        """Start a process that prepares a contender.

        Args:
            name: the contender.
            args: the parsed options of ``tvm-stitch bench``.
        """
        self.name = name
        self._said = tempfile.TemporaryFile()
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=self._said,  # compilers and exporters warn and print
                stderr=self._said,
                process_group=0,  # an interrupt is for the parent, which ends its children
            )
        options = {key: value for key, value in vars(args).items() if key not in _NOT_SENT}
        with contextlib.suppress(ConnectionError):  # the next answer says that the process has ended
            self._pipe.send((name, options))

    def prepared(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the contender's outputs and facts, once it is prepared. It is stopped then.

        Raises:
            Unavailable: if the contender does not take the model.
            UsageError: if the options or the model are not valid.
            Failure: if anything else fails. The child's traceback is a note of the error.
        """
        outputs, facts = self._answer()
        self._pause()
        return outputs, facts

    def turn(self) -> list[float]:
        """Return the seconds of each call of a turn. All other contenders have to be stopped.

        Raises:
            Failure: if the process ends.
        """
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ConnectionError):
            self._pipe.send("turn")
        seconds: list[float] = self._answer()
        self._pause()
        return seconds

    def _pause(self) -> None:
        """Stop the process, and wait until it is stopped or has ended."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._said.close()

    def _answer(self) -> Any:
        try:
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            raise Failure(
                f"the process of {self.name} ended ({how}){f': {said}' if (said := self._last()) else ''}"
            ) from None
        if kind == "done":
            return answer
        if kind == "unavailable":
            raise Unavailable(answer)
        if kind == "usage":
            raise UsageError(answer)
        message, told, trace = answer
        error = Failure(message if told else f"{self.name}: {message} (--debug shows where)")
        error.add_note(trace)
        raise error

    def _last(self) -> str:
        """Return the last line that the process wrote."""
        self._said.seek(0)
        lines = self._said.read()[-4096:].decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a contender: a runtime waits in it as it waits in a user's program."""
    return without_our_choice(given)


@contextlib.contextmanager
def processes(names: tuple[str, ...], args: argparse.Namespace) -> Iterator[dict[str, Process]]:
    """Start the processes of contenders, which prepare them at the same time. All end with this context."""
    made: dict[str, Process] = {}
    try:
        for name in names:
            made[name] = Process(name, args)
        yield made
    finally:
        for process in made.values():
            process.end()
