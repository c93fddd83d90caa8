# SPDX-License-Identifier: Apache-2.0
"""Tests in this folder need a TVM with Relay. Without it they are not collected, and a warning says so."""

from __future__ import annotations

import importlib.util
import warnings

collect_ignore_glob: list[str] = []

if importlib.util.find_spec("tvm") is None or importlib.util.find_spec("tvm.relay") is None:
    collect_ignore_glob.append("*")
    warnings.warn(
        "tests/relay is left out: this TVM has no Relay (.venv-relay, made by make venv-relay, has one that does)",
        stacklevel=1,
    )
