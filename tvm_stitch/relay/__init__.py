# SPDX-License-Identifier: Apache-2.0
"""Stitching for Relay (TVM 0.12 to 0.19): the passes, one file each, and the hook into ``relay.build``."""

from .. import compat

if not compat.HAS_RELAY:
    raise ImportError(
        "tvm_stitch.relay needs a TVM with Relay (0.12 to 0.19), and the tvm that is installed here has none; "
        "with this one, use tvm_stitch.compile or tvm_stitch.relax"
    )

from ..records.recorder import Recorder
from ..support.errors import StitchError
from .explain import explain
from .hook import enable
from .schedule_stitch_ops import ScheduleStitchOps
from .stitch import stitch
from .stitch_ops import StitchOps

__all__ = ["Recorder", "ScheduleStitchOps", "StitchError", "StitchOps", "enable", "explain", "stitch"]
