# SPDX-License-Identifier: Apache-2.0
"""Stitching schemes: where an operator's result lives for its consumers (AStitch 3)."""

from __future__ import annotations

import enum


class Scheme(enum.Enum):
    """Where an operator's result lives for its consumers."""

    INDEPENDENT = "Independent"
    LOCAL = "Local"
    REGIONAL = "Regional"
    CLUSTER = "Cluster"
    GLOBAL = "Global"
