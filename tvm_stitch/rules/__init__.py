# SPDX-License-Identifier: Apache-2.0
"""Stitching as schedule rules for TVM's own frameworks."""

from .stitch_rule import StitchRule

__all__ = ["StitchRule"]
