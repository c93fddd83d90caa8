# SPDX-License-Identifier: Apache-2.0
"""Collect the warnings by which the package reports its own failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Kept(logging.Handler):
    def __init__(self, shown: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self.shown = shown
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.shown(record.getMessage()))


@contextmanager
def warned(shown: Callable[[str], str] = str) -> Iterator[list[str]]:
    """Collect the package's warnings in this context, instead of printing them. ``shown`` transforms their text.

    A refused scope has a reason, and causes no warning. Warnings report errors of the package or of TVM, after which
    TVM compiles the operators. The results are right nevertheless, so only this list shows the errors.
    """
    logger, kept = logging.getLogger("tvm_stitch"), _Kept(shown)
    propagated, level = logger.propagate, logger.level
    logger.addHandler(kept)
    logger.propagate = False
    logger.setLevel(logging.WARNING)  # another package may have set another level for all loggers
    try:
        yield kept.found
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagated
        logger.setLevel(level)
