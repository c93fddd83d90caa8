# SPDX-License-Identifier: Apache-2.0
"""A plot of the measurements: every contender's time over the stitched build's, by model."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from .load import file_name
from .report import OURS, Row, ratio


class NoMatplotlib(Exception):
    """matplotlib is not installed: the message says what to do."""


def check() -> None:
    """Check that plots can be made.

    Raises:
        NoMatplotlib: if they cannot.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise NoMatplotlib("not installed, and needed for --plot: pip install matplotlib")


def save(models: Sequence[Row], contenders: Sequence[str], path: Path) -> None:
    """Write the plot, in the format that the file's name ends in."""
    from matplotlib.figure import Figure

    others = [name for name in contenders if name != OURS and any(ratio(model, name) for model in models)]
    figure = Figure(figsize=(2 + 1.1 * len(models), 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(others))
    for place, name in enumerate(others):
        at = [i + (place - (len(others) - 1) / 2) * width for i in range(len(models))]
        axes.bar(at, [ratio(model, name) or 0.0 for model in models], width, label=name)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_xticks(range(len(models)), [file_name(m["model"]) for m in models], rotation=45, ha="right")
    axes.set_ylabel("time over the stitched build's")
    axes.legend()
    figure.savefig(path)
