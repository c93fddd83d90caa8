# SPDX-License-Identifier: Apache-2.0
"""Rewrites of StitchGraphs that save passes over memory."""

from .moments import Moments, candidates, merge_moments

__all__ = ["Moments", "candidates", "merge_moments"]
