# SPDX-License-Identifier: Apache-2.0
"""Choices: every constant of choice, each with the measurement behind it, as a field of the device model.

``tvm_stitch.device`` says what a device is: its registers, its bandwidth. A constant of choice was measured or decided.
The figures are an H200's unless a constant says another device, and all devices have the same ones so far. A function
that needs a constant reads it from the device that it is given, as ``device.choices.split_gain``, or gets the choices
as an argument. ``device.with_choices(split_gain=0.8)`` returns a device with another value.
"""

from __future__ import annotations

from dataclasses import dataclass

from .code import CodeChoices
from .cpu import CpuChoices
from .fusion import FusionChoices
from .grid import GridChoices
from .kernels import KernelChoices
from .launches import LaunchChoices
from .libraries import LibraryChoices
from .products import ProductChoices
from .rows import RowChoices
from .strategies import StrategyChoices


@dataclass(frozen=True)
class Choices(
    LaunchChoices,
    FusionChoices,
    RowChoices,
    StrategyChoices,
    GridChoices,
    CpuChoices,
    CodeChoices,
    ProductChoices,
    KernelChoices,
    LibraryChoices,
):
    """The constants of choice of one device. Each base class holds those of one concern."""
