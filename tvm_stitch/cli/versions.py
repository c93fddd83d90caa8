# SPDX-License-Identifier: Apache-2.0
"""Versions of this package and of its dependencies."""

from __future__ import annotations

import argparse
import contextlib
import platform
from collections.abc import Sequence
from typing import Any

from tvm_stitch import __version__


def versions() -> dict[str, str]:
    """Return versions by package, without packages that are not installed."""
    from importlib import metadata

    by_package = {"tvm-stitch": __version__}
    for package in ("apache-tvm", "apache-tvm-ffi", "onnx", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_package[package] = metadata.version(package)
    return {**by_package, "python": platform.python_version()}


class ShowVersions(argparse.Action):
    """``--version``: print one line for each package, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for name, version in versions().items():
            print(name, version)
        parser.exit()
