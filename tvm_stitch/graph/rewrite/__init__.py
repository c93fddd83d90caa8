# SPDX-License-Identifier: Apache-2.0
"""Rewrites of StitchGraphs that save passes over memory."""

from .common import merge_common
from .moments import Moments, candidates, merge_moments

__all__ = ["Moments", "candidates", "merge_common", "merge_moments"]
