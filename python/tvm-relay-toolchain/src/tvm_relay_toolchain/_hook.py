# SPDX-License-Identifier: Apache-2.0
"""The import hook: a finder for the name ``tvm`` alone, installed when an interpreter starts.

A ``.pth`` file next to the package runs ``install``, in worker processes too. It must stay cheap: nothing is
searched or loaded before someone imports ``tvm``.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

at_startup = False
"""True if the ``.pth`` file ran. Every process of this Python then finds TVM by itself."""


class TvmFinder:
    """Meta-path finder that answers only for the top-level package ``tvm``."""

    of_toolchain = True
    """Distinguishes it from other finders, without an import of this module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the TVM to import, or None to leave the name to the other finders."""
        if name != "tvm":
            return None
        from .loading import tvm_spec

        return tvm_spec(at_startup)


def install(startup: bool = False) -> None:
    """Put the finder in front of the others, once.

    It comes first because another finder may find this package's TVM, whose libraries must be loaded first. Any
    other TVM is left to the other finders.
    """
    global at_startup
    at_startup = at_startup or startup
    if not any(isinstance(finder, TvmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TvmFinder())
