# SPDX-License-Identifier: Apache-2.0
"""Checks before a command that runs a model compiles it: a suitable machine, and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import Failure, UsageError
from .readers.model import Job

if TYPE_CHECKING:
    import numpy as np


def random_inputs_here(job: Job, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs of a model that this machine can run.

    Raises:
        Failure: if it has no such device, or an older CPU.
        UsageError: if a shape is symbolic.
    """
    from ..execution.tensors import make_inputs
    from ..relax.report.measured import check_runs_here

    try:
        check_runs_here(job.target)
    except RuntimeError as error:
        raise Failure(str(error)) from None
    try:
        return make_inputs(job.model.inputs, seed)
    except ValueError as error:
        raise UsageError(f"{error}: --shape INPUT=1,128") from None
