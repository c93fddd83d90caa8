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
    """Provide a temporary folder whose files move to ``output`` at the end, over files of the same names.

    If the context raises, ``output`` stays as it was. Earlier files stay, and folders created for it are removed.
    An interrupt during the move is delayed until all files are moved.

    Raises:
        OSError: if ``output`` is not a folder that can be created or written to.
    """
    created = _made(output)
    temporary = None
    try:
        with deferred():
            temporary = Path(tempfile.mkdtemp(prefix=".tvm-stitch-", dir=output))
        yield temporary
        with deferred():
            for path in sorted(temporary.iterdir()):
                os.replace(path, output / path.name)
            created = []
    finally:
        with deferred():
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            for folder in reversed(created):
                with contextlib.suppress(OSError):  # another process has put something there
                    folder.rmdir()


def _made(output: Path) -> list[Path]:
    """Create a folder with its parents. Return the created ones, outermost first."""
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
