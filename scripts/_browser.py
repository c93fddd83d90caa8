# SPDX-License-Identifier: Apache-2.0
"""Run a script in a page of a headless Chromium, and return its result with the browser's complaints."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--virtual-time-budget=30000",
)  # fmt: skip
HARNESS = """
<script>
const complaints = [];
addEventListener("error", (event) => complaints.push(String(event.message)));
addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => complaints.push(event.violatedDirective));
const click = (found) => found.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const ready = (state) => new Promise((done) => {
  const look = () => {
    const now = document.body.dataset.ready;
    if (state ? now === state : now) done();
    else setTimeout(look, 10);
  };
  look();
});
addEventListener("load", async () => {
  await ready();
  const opened = performance.now();
  let found = null;
  try {
    found = await (async () => { STEPS })();
  } catch (error) {
    complaints.push(String(error));
  }
  const told = document.createElement("pre");
  told.id = "outcome";
  told.textContent = JSON.stringify({ opened, found, complaints });
  document.body.append(told);
});
</script>
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a page's script, milliseconds until the page was ready, and all errors."""

    found: Any
    opened: float
    complaints: list[str]


def find_browser() -> str | None:
    """Return the path of a Chromium: the one that ``CHROMIUM`` names, or one on the path."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def in_browser(page: str, steps: str, folder: Path, width: int = 1400) -> Outcome:
    """Open a page and run JavaScript in it when it is ready.

    Args:
        page: HTML.
        steps: the body of an async function. It may call ``click(element)`` and ``await ready(state)``.
        folder: where to put files.
        width: of the window, in pixels.
    """
    path = folder / "page.html"
    path.write_text(page.replace("<head>", "<head>" + HARNESS.replace("STEPS", steps), 1), encoding="utf-8")
    browser = find_browser()
    assert browser is not None
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as profile:
        ran = subprocess.run(
            [browser, *OPTIONS, f"--window-size={width},900", f"--user-data-dir={profile}", "--dump-dom",
             path.as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    outcome = re.search(r'<pre id="outcome">(.*?)</pre>', ran.stdout, re.S)
    assert outcome, f"the page never got ready: {ran.stderr[-2000:]}"
    told = json.loads(html.unescape(outcome[1]))
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return Outcome(told["found"], told["opened"], [*told["complaints"], *console])
