# SPDX-License-Identifier: Apache-2.0
"""Checks before a command that runs a model compiles it: a suitable machine, and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import Failure, UsageError
from .readers.model import Job

if TYPE_CHECKING:
    import numpy as np


def check_here(target: Any) -> None:
    """Raise a Failure if this machine has no device of a target, or an older CPU."""
    from ..relax.report.measured import check_runs_here

    try:
        check_runs_here(target)
    except RuntimeError as error:
        raise Failure(str(error)) from None


def random_inputs_here(job: Job, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs of a model that this machine can run.

    Raises:
        Failure: if it has no such device, or an older CPU.
        UsageError: if a shape is symbolic.
    """
    from ..execution.tensors import SymbolicShape, make_inputs

    check_here(job.target)
    try:
        return make_inputs(job.model.inputs, seed)
    except SymbolicShape as error:
        raise UsageError(f"{error}: {error.spec.shape_option}, each N a number") from None
