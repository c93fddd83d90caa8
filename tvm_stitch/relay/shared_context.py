# SPDX-License-Identifier: Apache-2.0
"""A change to the process that several users share at a time, in any order and from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ..support.interrupts import deferred


class SharedContext:
    """A context that its first user enters and its last user leaves.

    Args:
        make: creates the context, each time that nobody is inside.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._entered = ExitStack()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep the shared context entered."""
        with deferred(), self._lock:
            if not self._users:
                self._entered.enter_context(self._make())
            self._users += 1
        try:
            yield
        finally:
            with deferred(), self._lock:
                self._users -= 1
                if not self._users:
                    self._entered.close()
