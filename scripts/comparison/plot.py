# SPDX-License-Identifier: Apache-2.0
"""Plots of a comparison: kernels and times by variant, as SVG, and as PNG if matplotlib is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from comparison.results import Comparison

_MEMORY, _OTHER = "#c8553d", "#9db4c0"
_WIDTH, _HEIGHT, _MARGIN = 380, 300, 56


@dataclass(frozen=True)
class Bar:
    """One variant: the memory-intensive part, the rest on top of it, and the range of the sum."""

    label: str
    memory: float
    rest: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    """Bars of one quantity."""

    title: str
    bars: Sequence[Bar]

    @property
    def top(self) -> float:
        """Return the greatest value that must fit."""
        return max((max(bar.memory + bar.rest, bar.high) for bar in self.bars), default=0.0) or 1.0


def panels(comparison: Comparison) -> list[Panel]:
    """Return panels of kernels, of the memory-intensive time and of the whole time. Unmeasured ones are left out."""
    kernels, memory, whole = [], [], []
    for record in comparison.records:
        if record.kernels:
            total, some = record.kernels.total, record.kernels.memory_intensive
            kernels.append(Bar(record.title, some, total - some, total, total))
        if record.memory_seconds:
            low, mid, high = record.memory_seconds.milliseconds
            memory.append(Bar(record.title, mid, 0.0, low, high))
        if record.seconds:
            low, mid, high = record.seconds.milliseconds
            part = min(mid, 1e3 * record.memory_seconds.median) if record.memory_seconds else 0.0
            whole.append(Bar(record.title, part, mid - part, low, high))
    return [
        Panel("kernels", kernels),
        Panel("memory-intensive part, ms", memory),
        Panel("whole, ms", whole),
    ]


def save_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``plot.svg``, and ``plot.png`` if matplotlib can be imported. Return the written files."""
    paths = [folder / "plot.svg"]
    paths[0].write_text(svg(comparison))
    if importlib.util.find_spec("matplotlib"):
        paths.append(folder / "plot.png")
        _png(comparison, paths[1])
    return paths


def svg(comparison: Comparison) -> str:
    """Return the plot as SVG text, with three panels side by side."""
    shown = panels(comparison)
    width = _WIDTH * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT + 50}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{_HEIGHT + 50}" fill="white"/>',
        _text(width / 2, 18, f"{comparison.workload}, {comparison.target}", size=13),
    ]
    for place, panel in enumerate(shown):
        parts += _svg_panel(panel, place * _WIDTH)
    for place, (words, colour) in enumerate((("memory-intensive", _MEMORY), ("everything else", _OTHER))):
        x = width / 2 - 130 + 140 * place
        parts.append(f'<rect x="{x}" y="{_HEIGHT + 30}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 15, _HEIGHT + 39, words, anchor="start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _svg_panel(panel: Panel, left: float) -> list[str]:
    base, room = _HEIGHT - 10, _HEIGHT - 90
    step = (_WIDTH - _MARGIN) / max(1, len(panel.bars))
    parts = [_text(left + _WIDTH / 2, 44, panel.title, size=12)]
    for place, bar in enumerate(panel.bars):
        x, width = left + _MARGIN / 2 + step * (place + 0.2), step * 0.6
        y = float(base)
        for value, colour in ((bar.memory, _MEMORY), (bar.rest, _OTHER)):
            height = room * value / panel.top
            y -= height
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
        middle = x + width / 2
        low, high = (base - room * value / panel.top for value in (bar.low, bar.high))
        if bar.high > bar.low:
            parts.append(f'<path d="M{middle:.1f} {low:.1f}V{high:.1f}" stroke="black"/>')
        parts.append(_text(middle, min(y, high) - 4, f"{bar.memory + bar.rest:.4g}"))
        parts.append(_text(middle, base + 16, bar.label))
    parts.append(f'<path d="M{left + _MARGIN / 2} {base}H{left + _WIDTH - _MARGIN / 2}" stroke="black"/>')
    return parts


def _text(x: float, y: float, words: str, size: int = 11, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def _png(comparison: Comparison, path: Path) -> None:
    shown = panels(comparison)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(4.5 * len(shown), 4), layout="constrained"
    )
    figure.suptitle(f"{comparison.workload}, {comparison.target}", fontsize=9)
    for axes, panel in zip(figure.subplots(1, len(shown)), shown):
        labels = [bar.label for bar in panel.bars]
        memory = [bar.memory for bar in panel.bars]
        rest = [bar.rest for bar in panel.bars]
        sums = [bar.memory + bar.rest for bar in panel.bars]
        ranges = [
            [max(0.0, total - bar.low) for total, bar in zip(sums, panel.bars)],
            [max(0.0, bar.high - total) for total, bar in zip(sums, panel.bars)],
        ]
        axes.bar(labels, memory, color=_MEMORY, label="memory-intensive")
        axes.bar(labels, rest, bottom=memory, yerr=ranges, color=_OTHER, label="everything else")
        axes.set_title(panel.title, fontsize=10)
        axes.tick_params(axis="x", labelsize=8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=150)
