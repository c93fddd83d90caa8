# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of reports in the user guide, in a headless Chromium.

    python scripts/report_images.py

writes docs/images/report-graph.png (for a CUDA device) and report-edge.png (for this CPU, in dark colours, with an edge
selected) of the BERT encoder that ``make run`` builds. ``report-difference.png`` compares two configurations
for this CPU, the default and one without epilogues, on a step of a decoder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from _browser import find_browser
from _checkout import ROOT  # also puts the packages on the path
from report_accessibility import MODELS, difference

import tvm_stitch

STEPS = {
    "report-graph.png": "",
    "report-edge.png": """
      document.documentElement.dataset.theme = "dark";
      const links = [...document.querySelectorAll(".link .hit")];
      links[links.length - 1].dispatchEvent(new MouseEvent("click", { bubbles: true }));
    """,
}
DIFFERENCE = "report-difference.png"
TARGETS = {"report-graph.png": "cuda", "report-edge.png": "native"}


def main() -> int:
    """Write the pictures."""
    browser = find_browser()
    if browser is None:
        print("error: no Chromium found: install one, or name one in CHROMIUM", file=sys.stderr)
        return 2
    mod = MODELS["bert"][0]()
    for name, target in TARGETS.items():
        page = tvm_stitch.explain(mod, target).to_html("BERT encoder")
        take(page, STEPS[name], ROOT / "docs" / "images" / name, browser)
        print(f"docs/images/{name}")
    page = difference(*MODELS["decoder"])
    take(page, "", ROOT / "docs" / "images" / DIFFERENCE, browser)
    print(f"docs/images/{DIFFERENCE}")
    return 0


def take(page: str, steps: str, path: Path, browser: str) -> None:
    """Take a picture of a page after some JavaScript has run in it."""
    script = f"<script>addEventListener('load', () => setTimeout(() => {{ {steps} }}, 3000));</script>"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.html")
        source.write_text(page.replace("</body>", f"{script}</body>"), encoding="utf-8")
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900",
                "--virtual-time-budget=10000", f"--user-data-dir={folder}/profile", f"--screenshot={path}",
                source.as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
