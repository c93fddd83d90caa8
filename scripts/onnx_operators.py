#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the page of all honoured ONNX operators and attributes (docs/onnx-operators.md).

python scripts/onnx_operators.py
python scripts/onnx_operators.py --check   # exit 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "onnx-operators.md"


def main(argv: list[str] | None = None) -> int:
    """Write the page or, with ``--check``, compare it. Return the exit code."""
    from tvm_stitch.importers.onnx.honoured.page import page

    parser = argparse.ArgumentParser(description="Write docs/onnx-operators.md.")
    parser.add_argument("--check", action="store_true", help="only compare, and exit 1 if the page differs")
    args = parser.parse_args(argv)
    text = page()
    if args.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
