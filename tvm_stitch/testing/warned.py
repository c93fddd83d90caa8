# SPDX-License-Identifier: Apache-2.0
"""What the package warns of, collected: it does where something of its own failed."""

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
    """What the package warns of meanwhile, instead of printing it; ``shown`` makes of a text what is kept.

    A scope that it refuses has a reason, and no warning; it warns of errors of its own or of TVM's, which leave the
    operators to TVM. The numbers are right all the same, so that only this list shows them.
    """
    logger, kept = logging.getLogger(__name__.split(".")[0]), _Kept(shown)
    propagated, level = logger.propagate, logger.level
    logger.addHandler(kept)
    logger.propagate = False
    logger.setLevel(logging.WARNING)  # whatever level another package has set for all
    try:
        yield kept.found
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagated
        logger.setLevel(level)
