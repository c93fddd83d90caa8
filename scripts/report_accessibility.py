# SPDX-License-Identifier: Apache-2.0
"""Check reports with axe-core in a headless Chromium, and walk through them with the keyboard alone.

    npm install axe-core
    python scripts/report_accessibility.py --axe node_modules/axe-core/axe.min.js

The reports are those of a BERT encoder, a whole U-Net and a step of a decoder, and the difference of two
configurations of each. Each is checked at the width of a desk and of a phone, in light and dark colours, and with an
open panel. A line for each says which rules are violated, and where. The exit code is 1 if there is a violation, if a
control is not reached by the keyboard, or if the page scrolls sideways.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  puts the packages on the path
from _browser import find_browser, in_browser

import tvm_stitch
from tvm_stitch.importers.onnx.names import from_onnx_named
from tvm_stitch.testing.workloads.bert import build_bert

WIDTHS = {"desk": 1400, "phone": 390}
THEMES = ("light", "dark")
STEPS = """
  document.documentElement.dataset.theme = "THEME";
  const canvas = document.getElementById("canvas");
  const violations = [];
  const text = ({ html, any }) => [html.slice(0, 120), any.map((a) => a.message).join(" ").slice(0, 160)];
  const check = async (where) => {
    await new Promise((done) => setTimeout(done, 400));
    const found = await axe.run(document, { preload: false, resultTypes: ["violations"] });
    for (const each of found.violations)
      violations.push([where, each.id, each.nodes.length, ...text(each.nodes[0])]);
  };
  const press = (element, key) => {
    element.focus();
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
    element.dispatchEvent(event);
  };
  const unreached = [];
  await check("page");
  if (canvas) {
    for (const [selector, name] of [[".card", "kernel"], [".link.actionable .hit", "edge"]]) {
      const element = document.querySelector(selector);
      if (!element) continue;
      element.focus();
      if (document.activeElement !== element) unreached.push(selector);
      const before = document.getElementById("panel").innerText;
      press(element, "Enter");
      if (document.getElementById("panel").innerText === before) unreached.push(`${selector} by Enter`);
      await check(name);
      document.querySelectorAll("#panel details").forEach((each) => (each.open = true));
      await check(`${name}, unfolded`);
      dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    }
    const operators = document.querySelector("[data-view=operators]:not([hidden])");
    if (operators) {
      delete document.body.dataset.ready;
      operators.click();
      await ready();
      await check("operators");
    }
  }
  const sideways = document.documentElement.scrollWidth > innerWidth;
  return { violations, unreached, sideways, width: innerWidth };
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings, and return the exit code: 2 if something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"some of {', '.join(PAGES)} (default: all)")
    parser.add_argument("--axe", type=Path, default=Path("node_modules/axe-core/axe.min.js"), help="the file")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.pages if name not in PAGES]:
        parser.error(f"there is no page {unknown[0]}; there are {', '.join(PAGES)}")
    if find_browser() is None or not args.axe.is_file():
        missing = (
            "no Chromium found" if args.axe.is_file() else f"there is no {args.axe}: npm install axe-core"
        )
        print(f"error: {missing}", file=sys.stderr)
        return 2
    axe = args.axe.read_text(encoding="utf-8")
    wrong = 0
    for name in args.pages or PAGES:
        page = PAGES[name]()
        for width, pixels in WIDTHS.items():
            for theme in THEMES:
                violations = findings(page, axe, pixels, theme)
                wrong += len(violations)
                print(f"{name}, {width}, {theme}: {len(violations) or 'no'} findings", flush=True)
                print("".join(f"    {each}\n" for each in violations), end="", flush=True)
    return int(wrong > 0)


def findings(page: str, axe: str, width: int, theme: str) -> list[str]:
    """Return the violations of a page, controls that the keyboard does not reach, and complaints of the browser.

    Args:
        page: HTML.
        axe: the source of axe-core.
        width: of the window, in pixels.
        theme: ``"light"`` or ``"dark"``.
    """
    if 'id="canvas"' not in page:  # a page without scripts is ready at once
        page = page.replace("<body>", '<body data-ready="yes">', 1)
    with_axe = page.replace("<head>", f"<head><script>{axe}</script>", 1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcome = in_browser(with_axe, STEPS.replace("THEME", theme), Path(folder), width)
    return [*told(outcome.found or {}, width), *outcome.complaints]


def told(violations: Mapping[str, Any], width: int) -> list[str]:
    """Return what a page's script found, a line for each finding."""
    lines = [
        f"{where}: {rule}, {count} times, such as {node} {why}"
        for where, rule, count, node, why in violations.get("violations", ())
    ]
    lines += [f"not reached by the keyboard: {each}" for each in violations.get("unreached", ())]
    if violations.get("sideways"):
        lines.append(f"the page scrolls sideways at a width of {width}")
    return lines


def _bert() -> Any:
    return from_onnx_named(build_bert())


def _unet() -> Any:
    from report_opening import imported

    return imported("unet", "small")


def _decoder() -> Any:
    from models.decoder_step import Decoder, as_relax

    sizes = Decoder(layers=2, hidden=256, heads=8, key_heads=2, inner=512, cache=128, words=1000)
    return as_relax(sizes)


def _report(make: Callable[[], Any], title: str) -> str:
    return tvm_stitch.explain(make(), "cuda").to_html(title)


def difference(make: Callable[[], Any], title: str) -> str:
    """Return the page that compares the default configuration for this CPU with one without epilogues."""
    mod, plain = make(), tvm_stitch.StitchConfig(epilogues=False)
    return tvm_stitch.explain(mod, "native").against(tvm_stitch.explain(mod, "native", plain)).to_html(title)


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "bert": (_bert, "BERT encoder"),
    "unet": (_unet, "U-Net"),
    "decoder": (_decoder, "A step of a decoder"),
}
"""The models by name, each with its title."""
PAGES: dict[str, Callable[[], str]] = {
    **{name: partial(_report, *model) for name, model in MODELS.items()},
    **{f"difference-{name}": partial(difference, *model) for name, model in MODELS.items()},
}
"""The pages by name."""

if __name__ == "__main__":
    sys.exit(main())
