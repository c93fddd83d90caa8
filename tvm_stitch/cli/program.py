# SPDX-License-Identifier: Apache-2.0
"""Reads the options, runs a command, prints what it returns, and makes exit codes of what it raises."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from .commands import bench, compile, explain, run
from .errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, Failure, UsageError, told
from .heavy import import_compiler
from .options import add_output_options
from .progress import Progress, one_line, tell
from .versions import ShowVersions

COMMANDS = (compile, explain, run, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        return _run(argv)
    except KeyboardInterrupt:  # at whatever moment, in the handlers below too
        tell("tvm-stitch: interrupted")
        return EXIT_INTERRUPTED


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above them."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end the program with the code of a usage error."""
        said = one_line(f"{self.prog}: error: {message}; {self.prog} --help lists all options")
        self.exit(EXIT_USAGE, f"{said}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options; every command has a ``check`` of its options, and a ``run``."""
    made = OneLineParser(
        prog="tvm-stitch",
        description="Compile ONNX and PyTorch models with memory-intensive operators stitched into single kernels.",
    )
    made.add_argument("--version", action=ShowVersions, help="print the versions of what works here")
    names = {module.__name__.rpartition(".")[2]: module for module in COMMANDS}
    commands = made.add_subparsers(dest="command", required=True, metavar="|".join(names))
    for name, module in names.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_options(command)
        add_output_options(command)
        command.set_defaults(check=module.check, run=module.run)
    return made


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has written its message, or the help
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    try:
        args.check(args)
        import_compiler()
        from ..support.interrupts import watched

        # The compiler's own prints are no results.
        with watched(), _no_warnings(), contextlib.redirect_stdout(sys.stderr):
            data, text = args.run(args, Progress(enabled=not args.quiet))
        return _print(json.dumps(data, indent=2) if args.json else text)
    except UsageError as error:
        tell(f"tvm-stitch: error: {error}")
        return EXIT_USAGE
    except Exception as error:  # a failure ends in one line, not in a traceback
        if args.debug:
            raise
        more = "" if isinstance(error, (Failure, MemoryError)) else " (--debug shows where)"
        tell(f"tvm-stitch: {args.command} failed: {told(error)}{more}")
        return EXIT_FAILURE


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Nothing is printed meanwhile of what the package warns of: it is in what is told."""
    logger, handler = logging.getLogger("tvm_stitch"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _print(text: str) -> int:
    """The result on stdout, with names that its encoding lacks as escapes. Who reads it may have gone away, and a disk
    may be full."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # what Python would flush at its end, and complain of
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        tell(f"tvm-stitch: the result could not be written to stdout: {error.strerror}")
        return EXIT_FAILURE
    return EXIT_OK
