# SPDX-License-Identifier: Apache-2.0
"""``--version``: the versions of this package and of its dependencies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..deploy.versions import versions


class ShowVersions(argparse.Action):
    """``--version``: print one line for each package, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for name, version in versions().items():
            print(name, version)
        parser.exit()
