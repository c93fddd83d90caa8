# SPDX-License-Identifier: Apache-2.0
"""The imports that take seconds, done once the options are known to be good."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tvm_stitch_command import ended_by_interrupts

from ..support.cores import sleep_soon, use_all_cores
from .errors import Failure, UsageError


def import_compiler() -> None:
    """Import TVM and the compiler. An interrupt meanwhile ends the process, as later ones do.

    Raises:
        UsageError: where the environment asks for no number of threads.
    """
    if "tvm_stitch.relax" in sys.modules:
        return
    try:
        use_all_cores()  # which TVM asks for when it is imported
    except ValueError as error:
        raise UsageError(str(error)) from None
    sleep_soon()
    with ended_by_interrupts():
        importlib.import_module("tvm_stitch.relax.pipeline")


def import_or_say(module: str, advice: str) -> Any:
    """Return a module that not every installation has.

    Raises:
        Failure: where it is not installed, with what to do.
    """
    try:
        with ended_by_interrupts():
            return importlib.import_module(module)
    except ImportError as error:
        raise Failure(f"{error}; {advice}") from error
