# SPDX-License-Identifier: Apache-2.0
"""TVM's current pass context, with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

CUDA_GRAPH = "relax.backend.use_cuda_graph"
"""TVM's option that captures calls of static shapes and replays them as CUDA graphs."""


def instruments() -> list[Any]:
    """Return the instruments of the current pass context."""
    return list(tvm.transform.PassContext.current().instruments or [])


def changed(
    instruments: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
) -> tvm.transform.PassContext:
    """Return the current pass context with other instruments (if given), changed options, and some passes disabled."""
    now = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=now.opt_level,
        required_pass=list(now.required_pass),
        disabled_pass=[*now.disabled_pass, *without],
        instruments=list(now.instruments or []) if instruments is None else list(instruments),
        config={**dict(now.config.items()), **(config or {})},
    )
