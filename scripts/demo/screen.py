# SPDX-License-Identifier: Apache-2.0
"""Output of the demonstration: results on stdout, the current step on stderr. Only terminals get colours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


class Screen:
    """Lines of results, and the current step: one changing line on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, soft_wrap=True)
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line of results."""
        self.out.print(Text(text, style=style))

    def title(self, text: str) -> None:
        """Print a title above results."""
        self.line()
        self.line(text, "bold")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a step while this context is open."""
        if self.err.is_terminal:
            with self.err.status(what):
                yield
            return
        self.err.print(Text(f"{what} ..."))
        yield
