# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relax: the passes, one file each, and the pipeline that puts them together."""

from ..errors import StitchError
from .fuse_rest import FuseRest
from .half_precision import in_half_precision
from .lift_workspace import LiftWorkspace
from .mark import MergeStitchOps, UnmarkEpilogues
from .pipeline import pipeline
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch_ops import StitchOps

__all__ = [
    "FuseRest",
    "LiftWorkspace",
    "MergeStitchOps",
    "ScheduleStitchOps",
    "StitchError",
    "StitchOps",
    "UnmarkEpilogues",
    "in_half_precision",
    "pipeline",
]
