# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relax: the passes, one file each, and the pipeline that puts them together."""

from ..support.errors import StitchError
from .pipeline import pipeline
from .precision.half import in_half_precision
from .stitch.fuse_rest import FuseRest
from .stitch.lift_workspace import LiftWorkspace
from .stitch.mark import MergeStitchOps, UnmarkEpilogues
from .stitch.schedule_stitch_ops import ScheduleStitchOps
from .stitch.stitch_ops import StitchOps

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
