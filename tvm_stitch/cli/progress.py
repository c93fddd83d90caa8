# SPDX-License-Identifier: Apache-2.0
"""Says on stderr what is being done, and how long it took."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator


def one_line(text: str) -> str:
    """Return a text without what would end its line or steer a terminal: names of files may hold anything."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)


def tell(line: str) -> None:
    """A line on stderr. A stderr that nobody reads any more is no reason to stop."""
    with contextlib.suppress(OSError):
        print(one_line(line), file=sys.stderr, flush=True)


class Progress:
    """Called with what is about to be done; silent unless enabled."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        if self.enabled:
            tell(f"{what} ...")
        yield
        if self.enabled:
            tell(f"{what}: {time.perf_counter() - start:.1f} s")
