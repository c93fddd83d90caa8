# SPDX-License-Identifier: Apache-2.0
"""``--dump`` and ``--dump-to``: write the module behind a phase or a pass of the compiler."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UsageError
from .options import path_of


def add_dump(command: argparse.ArgumentParser) -> None:
    """Add the two options."""
    command.add_argument(
        "--dump",
        metavar="PHASE",
        help="write the module behind phases or passes as TVMScript; several are separated by commas, "
        "all stands for every phase; explain --passes lists them",
    )
    command.add_argument(
        "--dump-to",
        metavar="FOLDER",
        type=path_of,
        default=Path("tvm_stitch_dump"),
        help="of the files of --dump (default: %(default)s)",
    )


@contextmanager
def dumped(args: argparse.Namespace) -> Iterator[None]:
    """While this is active, the compiler writes what ``--dump`` asks for.

    Raises:
        UsageError: for a name that is neither a phase nor a pass.
    """
    if args.dump is None:
        yield
        return
    from ..relax.dump import asked_dump, dumping
    from ..relax.pass_table import PHASES
    from ..relax.phases import numbers_of

    with dumping(args.dump, args.dump_to):
        try:
            asked_dump(numbers_of(PHASES))
        except ValueError as error:
            raise UsageError(f"--dump: {error}") from None
        yield
