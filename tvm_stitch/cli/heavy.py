# SPDX-License-Identifier: Apache-2.0
"""Imports that take seconds, done after the options are checked."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..support.cores import sleep_soon, use_all_cores
from ..support.interrupts import ended_by_interrupts
from .errors import Failure, UsageError
from .late_torch import import_without_torch


def import_compiler() -> None:
    """Import TVM and the compiler. An interrupt during the import ends the process, like later ones.

    Raises:
        UsageError: if the environment sets an invalid number of threads.
    """
    if "tvm_stitch.relax" in sys.modules:
        return
    try:
        use_all_cores()  # TVM reads the number of threads when it is imported
    except ValueError as error:
        raise UsageError(str(error)) from None
    sleep_soon()
    with ended_by_interrupts():
        import_without_torch("tvm_stitch.relax.pipeline")


def import_or_say(module: str, advice: str) -> Any:
    """Return an optional module.

    Raises:
        Failure: if it is not installed, with advice.
    """
    try:
        with ended_by_interrupts():
            return importlib.import_module(module)
    except ImportError as error:
        raise Failure(f"{error}; {advice}") from error
