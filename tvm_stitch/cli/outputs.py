# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes: they are moved into place on success, and removed on failure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from .errors import UsageError


@contextlib.contextmanager
def written_to(output: Path, option: str) -> Iterator[Path]:
    """Provide a folder whose files move into the folder ``output`` at the end.

    Raises:
        UsageError: if nothing can be written there. The message names ``option``.
    """
    from ..support.written_whole import written_whole

    if output.exists() and not output.is_dir():
        raise UsageError(f"cannot write to {output}: it is not a folder; give another place with {option}")
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(written_whole(output))
        except OSError as error:
            raise UsageError(
                f"cannot write to {output}: {error.strerror}; give another place with {option}"
            ) from None
        yield folder


def check_files(outputs: Mapping[str, Path | None], inputs: Collection[Path] = ()) -> dict[str, Path]:
    """Return the given files by option.

    Args:
        outputs: files to write, by option. None for an option that is not given.
        inputs: files that are read, which nothing may replace.

    Raises:
        UsageError: if one of them cannot be a file, is also read, or two are the same.
    """
    read = {path.resolve() for path in inputs if path.exists()}
    given = {option: path for option, path in outputs.items() if path is not None}
    option_of: dict[Path, str] = {}
    for option, path in given.items():
        if path.is_dir() or not path.name:
            raise UsageError(f"{option}: {path} is a folder; give the path of a file")
        if path.exists() and not path.is_file():
            raise UsageError(f"{option}: {path} is not a regular file; give another path")
        if path.resolve() in read:
            raise UsageError(f"{option}: {path} is read by this command; give another path")
        other = option_of.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{other} and {option} name one file; give two")
    return given


@contextlib.contextmanager
def files_for(outputs: Mapping[str, Path | None]) -> Iterator[dict[str, Path]]:
    """Provide files to write, by option, which replace ``outputs`` at the end. Options that are not given have
    none.

    Raises:
        UsageError: as :func:`check_files`, and if a file cannot be written.
    """
    given = check_files(outputs)
    with contextlib.ExitStack() as stack:
        yield {o: stack.enter_context(written_to(path.parent, o)) / path.name for o, path in given.items()}
