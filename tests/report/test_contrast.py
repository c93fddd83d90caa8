# SPDX-License-Identifier: Apache-2.0
"""Contrasts of the page's colours, in both themes: 4.5 at least for text, as WCAG 2.1 AA asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tvm_stitch.report

CSS = (Path(tvm_stitch.report.__file__).parent / "assets" / "page.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6});", block))
    for block in (CSS[CSS.index(":root {") :].split("}")[0], CSS[CSS.index('="dark"] {') :].split("}")[0])
)
PLAIN = ("ground", "surface", "raised")
USED = [
    *(("ink", each) for each in (*PLAIN, "soft", "frame", "warn-soft")),
    *(("muted", each) for each in (*PLAIN, "soft")),
    *(("accent", each) for each in PLAIN),
    *(("warn", each) for each in (*PLAIN, "warn-soft")),
]
"""Colours of text, and those of what is behind it."""


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_stands_out(theme: dict[str, str]) -> None:
    found = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in USED}
    assert {pair: round(each, 2) for pair, each in found.items() if each < 4.5} == {}


def test_the_formula() -> None:
    assert contrast("000000", "ffffff") == pytest.approx(21.0)
    assert contrast("c2570c", "fff4e8") == pytest.approx(4.15, abs=0.01)  # as axe-core says
