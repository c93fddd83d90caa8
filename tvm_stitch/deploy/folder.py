# SPDX-License-Identifier: Apache-2.0
"""The folder of a compiled model: its files, found and checked before any of its code is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..support.private_files import check_trusted
from .library_file import is_library, is_manifest, is_whole

LIBRARY, MANIFEST, STATE = "model.so", "manifest.json", "state.npz"
"""Files of a folder. ``state.npz`` has the buffers that a model changes, if it changes some."""


class NotCompiled(ValueError):
    """A path is not that of a compiled model, or must not be loaded. The message says what to do."""


def find_library(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a library, and the data of its manifest, which are empty without a manifest.

    Args:
        path: the folder, or the library.

    Raises:
        NotCompiled: if the path is not that of a compiled model, or if another user may have written it.
    """
    if path.is_dir():
        manifest = path / MANIFEST
        if not manifest.is_file():
            raise NotCompiled(f"{path} has no {MANIFEST}; give a folder that tvm-stitch compile wrote")
        data = _manifest(manifest)
        library = path / _plain_name(manifest, str(data.get("library", LIBRARY)))
        if library.is_file() and library.resolve().parent != path.resolve():
            raise NotCompiled(
                f"{library} is a link out of its folder; copy {library.resolve()} there if you trust it"
            )
    else:
        library, neighbour = path, path.parent / MANIFEST
        data = _manifest(neighbour) if neighbour.is_file() else {}
        if data.get("library") != path.name:
            data = {}
    if not library.is_file():
        folder = path if path.suffix != ".so" else path.parent
        raise NotCompiled(f"no file {library}; tvm-stitch compile MODEL -o {folder} writes one")
    try:
        if not is_library(library):
            raise NotCompiled(
                f"{library} is not a compiled model; compile it first: tvm-stitch compile {library}"
            )
        if not is_whole(library):
            raise NotCompiled(f"{library} is cut off; compile the model again")
        check_trusted(library)  # loading it runs its code
    except PermissionError as error:
        raise NotCompiled(_unreadable(library, error) if error.filename else str(error)) from None
    except OSError as error:
        raise NotCompiled(_unreadable(library, error)) from None
    return library, data


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read: {error.strerror or error}"


def _plain_name(manifest: Path, name: str) -> str:
    """Return the name of the library in a manifest, which is a file next to it."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise NotCompiled(
            f"{manifest} names the library {name!r}, which is no name of a file in its folder; compile the model again"
        )
    return name


def _manifest(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if is_manifest(data):
            return dict(data)
    except (OSError, ValueError):
        pass
    raise NotCompiled(f"{path} is not a manifest of tvm-stitch compile; compile the model again")
