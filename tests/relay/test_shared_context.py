# SPDX-License-Identifier: Apache-2.0
"""A context that its users share: entered once, left by the last of them, made anew for the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tvm_stitch.relay.shared_context import SharedContext


def test_the_first_enters_and_the_last_leaves() -> None:
    seen: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    context = SharedContext(noted)
    first, second = context.shared(), context.shared()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert seen == ["in"]
    second.__exit__(None, None, None)
    assert seen == ["in", "out"]
    with pytest.raises(ValueError, match="inside"), context.shared():
        raise ValueError("inside")
    assert seen == ["in", "out"] * 2


def test_a_context_that_cannot_be_entered_has_no_users() -> None:
    fails = True

    @contextmanager
    def fragile() -> Iterator[None]:
        if fails:
            raise OSError("not now")
        yield

    context = SharedContext(fragile)
    with pytest.raises(OSError, match="not now"), context.shared():
        pass
    fails = False
    with context.shared():
        pass
