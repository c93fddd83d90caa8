# SPDX-License-Identifier: Apache-2.0
"""Files that appear together and complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .interrupts import deferred


@contextmanager
def written_whole(output: Path) -> Iterator[Path]:
    """A temporary folder whose files move to ``output`` at the end, over those of the same names.

    When what is inside raises, ``output`` is as it was: earlier files stay, and folders that were made for it go. An
    interrupt while the files are moved waits until all are.

    Raises:
        OSError: when ``output`` is no folder that can be made or written to.
    """
    made = _made(output)
    temporary = None
    try:
        with deferred():
            temporary = Path(tempfile.mkdtemp(prefix=".tvm-stitch-", dir=output))
        yield temporary
        with deferred():
            for path in sorted(temporary.iterdir()):
                os.replace(path, output / path.name)
            made = []
    finally:
        with deferred():
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            for folder in reversed(made):
                with contextlib.suppress(OSError):  # somebody else has put something there
                    folder.rmdir()


def _made(output: Path) -> list[Path]:
    """Make a folder with its parents; those that were not there, from the outside in."""
    missing = [p for p in [output, *output.parents] if not p.exists()][::-1]
    with deferred():
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError:
            for folder in reversed(missing):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
    return missing
