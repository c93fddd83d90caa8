# SPDX-License-Identifier: Apache-2.0
"""The loop of a contender's process: it prepares the contender, and times a turn of calls whenever it is asked."""

from __future__ import annotations

import argparse
import ctypes
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from ..errors import Failure, UsageError, message_of
from ..late_torch import import_without_torch
from . import ready

_SET_DEATH_SIGNAL = 1
"""The number of ``PR_SET_PDEATHSIG`` of prctl(2)."""


def serve(file: int) -> None:
    """Answer requests on a connection until it is closed.

    The first request is the contender's name and the options of ``tvm-stitch bench``, and its answer the contender's
    outputs and facts. Each later one asks for the time of a turn.

    Args:
        file: the number of the connection's file.
    """
    # The process is mostly stopped. It must not outlive a parent that is killed.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    pipe: Connection = Connection(file)
    try:
        name, options = pipe.recv()
        contender = _prepared(pipe, argparse.Namespace(**options), name)
        while contender is not None:
            pipe.recv()
            pipe.send(("done", ready.turn(contender.call, contender.restore)))
    except (EOFError, KeyboardInterrupt, ConnectionError):
        return


def _prepared(pipe: Connection, args: argparse.Namespace, name: str) -> ready.Ready | None:
    """Prepare a contender, and send its outputs and facts, or the reason why there is none."""
    answer: tuple[str, Any]
    try:
        import_without_torch("tvm")
        made = ready.prepare(args, name)
    except ready.Unavailable as error:
        answer = ("unavailable", str(error))
    except UsageError as error:
        answer = ("usage", str(error))
    except Exception as error:
        told = isinstance(error, (Failure, MemoryError))
        answer = ("failed", (message_of(error), told, traceback.format_exc()))
    else:
        pipe.send(("done", (list(made.outputs), dict(made.facts))))
        return made
    pipe.send(answer)
    return None
