# SPDX-License-Identifier: Apache-2.0
"""Rewrites of StitchGraphs that save passes over memory."""

from .one_pass_variance import Moments, candidates, with_one_pass_variance

__all__ = ["Moments", "candidates", "with_one_pass_variance"]
