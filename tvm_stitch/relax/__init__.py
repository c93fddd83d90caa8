# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relax: the passes, one file each, and the pipeline that puts them together."""

from ..errors import StitchError
from .half_precision import in_half_precision
from .mark import MergeStitchOps, UnmarkEpilogues
from .pipeline import pipeline
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps

__all__ = [
    "MergeStitchOps",
    "ScheduleStitchOps",
    "StitchError",
    "StitchOps",
    "UnmarkEpilogues",
    "in_half_precision",
    "pipeline",
]
