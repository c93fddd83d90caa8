# SPDX-License-Identifier: Apache-2.0
"""Kernels and copies on a GPU, by the CUPTI records of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = tuple[str, float]
"""The name of a kernel or copy, and its seconds."""


def device_events(run: Callable[[], object]) -> list[Event]:
    """Return everything that ran on the GPU during ``run``, in order of start. ``run`` waits for the GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
        run()
    events: list[Any] = [e for e in session.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us() * 1e-6) for event in events]
