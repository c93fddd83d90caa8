# SPDX-License-Identifier: Apache-2.0
"""Read the options, run a command, print its result, and turn its errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..support.interrupts import EXIT_INTERRUPTED
from .commands import bench, compile, explain, run
from .errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_TERMINATED,
    EXIT_USAGE,
    Failure,
    UsageError,
    message_of,
)
from .heavy import import_compiler
from .options import add_output_options
from .progress import Progress, lines_of_text, one_line, tell
from .termination import Terminated, terminating
from .versions import ShowVersions

COMMANDS = (compile, explain, run, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        with terminating():
            return _run(argv)
    except Terminated:
        tell("tvm-stitch: terminated")
        return EXIT_TERMINATED
    except KeyboardInterrupt:  # at any moment, in the handlers below too
        tell("tvm-stitch: interrupted")
        return EXIT_INTERRUPTED


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above them."""

    def error(self, message: str) -> NoReturn:
        """Print the error and end the program with the code of a usage error."""
        line = one_line(f"{self.prog}: error: {message}; {self.prog} --help lists all options")
        self.exit(EXIT_USAGE, f"{line}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options. Every command has a ``check`` of its options, and a ``run``."""
    top = OneLineParser(
        prog="tvm-stitch",
        description="Compile ONNX and PyTorch models with memory-intensive operators stitched into single kernels.",
    )
    top.add_argument("--version", action=ShowVersions, help="print the versions of what works here")
    names = {module.__name__.rpartition(".")[2]: module for module in COMMANDS}
    commands = top.add_subparsers(dest="command", required=True, metavar="|".join(names))
    for name, module in names.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_options(command)
        add_output_options(command)
        command.set_defaults(check=module.check, run=module.run)
    return top


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed its message, or the help
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    try:
        args.check(args)
        import_compiler()
        from ..support.interrupts import watched

        # Output printed by the compiler is not part of the result.
        with watched(), _no_warnings(), contextlib.redirect_stdout(sys.stderr):
            data, text = args.run(args, Progress(enabled=not args.quiet))
        return _print(json.dumps(data, indent=2) if args.json else lines_of_text(text))
    except UsageError as error:
        tell(f"tvm-stitch: error: {error}")
        return EXIT_USAGE
    except Exception as error:  # a failure ends in one line, not in a traceback
        if args.debug:
            raise
        more = "" if isinstance(error, (Failure, MemoryError)) else " (--debug shows where)"
        tell(f"tvm-stitch: {args.command} failed: {message_of(error)}{more}")
        return EXIT_FAILURE


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress the package's warnings in this context, because the results contain them."""
    logger, handler = logging.getLogger("tvm_stitch"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _print(text: str) -> int:
    """Print the result to stdout, with escapes for characters that its encoding lacks. Return the exit code.

    The process that reads stdout may have ended, and a disk may be full.
    """
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # otherwise Python would flush at exit, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        tell(f"tvm-stitch: the result could not be written to stdout: {error.strerror}")
        return EXIT_FAILURE
    return EXIT_OK
