# SPDX-License-Identifier: Apache-2.0
"""Report on stderr what is being done, and how long it took."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    """Return a text with control characters and line ends escaped, because names of files may hold anything."""
    return _CONTROL.sub(_escaped, text)


def lines_of_text(text: str) -> str:
    """Return a text of several lines with control characters escaped. A terminal would obey them."""
    return "\n".join(map(one_line, text.replace("\t", "    ").split("\n")))


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]


def tell(line: str) -> None:
    """Print a line to stderr. If nobody reads stderr any more, go on."""
    with contextlib.suppress(OSError):
        print(one_line(line), file=sys.stderr, flush=True)


class Progress:
    """Called with a description of the next step. Silent unless enabled."""

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
