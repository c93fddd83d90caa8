# SPDX-License-Identifier: Apache-2.0
"""A contender of bench_grid.py whose process dies. The module is light, for every process imports it anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from _grid_jobs import Answer, Measured


def misbehave(job: Any) -> Answer:
    """Answer a job as ``work`` does, or die."""
    if job.contender == "inductor":
        os._exit(7)
    return Answer(measured=Measured(2e-6, 2e-6, 2e-6, 1)) if job.step == "measure" else Answer()
