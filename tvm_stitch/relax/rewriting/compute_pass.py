# SPDX-License-Identifier: Apache-2.0
"""What passes over compute-intensive operators are told."""

from __future__ import annotations

from typing import Any

from ...config import StitchConfig, checked_config
from ...device import device_model
from ...target import resolve_target


class ComputePass:
    """A pass for a target, with options; ``computed`` receives for each operator what computes it, and why."""

    def __init__(
        self, target: Any, config: StitchConfig | None = None, computed: dict[str, str] | None = None
    ):
        self.target, self.config = resolve_target(target), checked_config(config)
        self.device = device_model(self.target, self.config)
        self.computed = computed if computed is not None else {}
