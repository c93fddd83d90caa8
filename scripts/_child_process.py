# SPDX-License-Identifier: Apache-2.0
"""Child processes that may crash: variables added to their environment, and their last output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment, for children that start in this context."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def last_words(errors: IO[Any], before: int, behind: int) -> list[str]:
    """Return the lines of a child's output around "Fatal Python error", or the last ones if it has none.

    Args:
        errors: the file that it wrote to, opened for bytes.
        before: lines in front of that one.
        behind: that line and those behind it.
    """
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    return [line for line in lines[max(0, fatal - before) : fatal + behind] if line]
