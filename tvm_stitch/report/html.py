# SPDX-License-Identifier: Apache-2.0
"""The report as a single HTML file, with data, style and scripts inline, so that it needs no network.

Text of the model reaches the page as JSON, and is shown as text. The title is escaped.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from string import Template

from .data import ModelReport

LIBRARIES = ("dispatch", "selection", "drag", "color", "interpolate", "timer", "ease", "transition", "zoom")
"""Modules of d3, each behind the modules that it needs."""
SCRIPTS = ("model.js", "graph.js", "panel.js", "kernel.js", "main.js")
EMBEDDED_HEIGHT = 720
"""Pixels of the page's frame in a notebook."""


def html_page(report: ModelReport, title: str, embedded: bool = False) -> str:
    """Return the page of a report.

    Args:
        report: the report.
        title: name of the model, any text.
        embedded: whether to return a frame for a notebook, instead of a document.
    """
    libraries = ["dagre.min.js", *(f"d3-{name}.min.js" for name in LIBRARIES)]
    own = "\n".join(_asset("assets", name) for name in SCRIPTS)
    scripts = [*(_asset("vendor", name) for name in libraries), f'(() => {{\n"use strict";\n{own}\n}})();']
    page = Template(_asset("assets", "page.html")).substitute(
        title=html.escape(title),
        style=_asset("assets", "page.css"),
        data=script_json(report.to_dict()),
        scripts="\n".join(f"<script>\n{script}\n</script>" for script in scripts),
    )
    if not embedded:
        return page
    frame = f"width:100%;height:{EMBEDDED_HEIGHT}px;border:1px solid #8884;border-radius:8px"
    return f'<iframe title="{html.escape(title)}" style="{frame}" srcdoc="{html.escape(page)}"></iframe>'


def script_json(data: object) -> str:
    """Return JSON that is safe in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(folder: str, name: str) -> str:
    return resources.files(__package__).joinpath(folder, name).read_text(encoding="utf-8")
