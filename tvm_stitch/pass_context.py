# SPDX-License-Identifier: Apache-2.0
"""The current pass context of TVM with other instruments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm


def instruments() -> list[Any]:
    """The instruments of the current pass context."""
    return list(tvm.transform.PassContext.current().instruments or [])


@contextmanager
def with_instruments(chosen: Sequence[Any]) -> Iterator[None]:
    """The current pass context with these instruments in place of its own."""
    now = tvm.transform.PassContext.current()
    with tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=list(now.disabled_pass),
        instruments=list(chosen),
        config=dict(now.config.items()),
    ):
        yield
