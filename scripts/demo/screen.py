# SPDX-License-Identifier: Apache-2.0
"""What the demonstration prints: results on stdout, the step it is at on stderr; colours on terminals only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Screen:
    """Lines of results, and the step that is under way: one line that changes on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, soft_wrap=True)
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """A line of results."""
        self.out.print(Text(text, style=style))

    def title(self, text: str) -> None:
        """A line above a part of the results."""
        self.line()
        self.line(text, "bold")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Says what is being done while it is."""
        if self.err.is_terminal:
            with self.err.status(what):
                yield
            return
        self.err.print(Text(f"{what} ..."))
        yield
