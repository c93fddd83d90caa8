# SPDX-License-Identifier: Apache-2.0
"""Versions of this package and of its dependencies."""

from __future__ import annotations

import contextlib
import platform
import sys


def versions() -> dict[str, str]:
    """Return versions by package, without packages that are not installed."""
    from importlib import metadata

    package = sys.modules[__name__.partition(".")[0]]  # is above this module, which must not import it
    by_package = {"tvm-stitch": str(vars(package)["__version__"])}
    for name in ("apache-tvm", "apache-tvm-ffi", "onnx", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_package[name] = metadata.version(name)
    return {**by_package, "python": platform.python_version()}
