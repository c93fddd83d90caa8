# SPDX-License-Identifier: Apache-2.0
"""Old paths of documented modules import, warn, and give the same objects."""

from __future__ import annotations

import importlib
import sys

import pytest

import tvm_stitch
from tvm_stitch.support import old_paths


@pytest.mark.parametrize("old", old_paths.MOVED)
def test_old_paths_warn_and_give_the_same_objects(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {old_paths.MOVED[old]}"):
        found = importlib.import_module(old)
    new = importlib.import_module(old_paths.MOVED[old])
    public = [name for name in dir(new) if not name.startswith("_")]
    assert public and all(getattr(found, name) is getattr(new, name) for name in public)


def test_new_paths_are_what_they_were() -> None:
    """Importing an old path leaves the module behind it as it is."""
    new = importlib.import_module("tvm_stitch.support.errors")
    importlib.import_module("tvm_stitch.errors")
    assert new.__spec__ is not None and new.__spec__.name == "tvm_stitch.support.errors"
    assert tvm_stitch.errors.StitchError is new.StitchError


def test_other_names_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="tvm_stitch.nothing"):
        importlib.import_module("tvm_stitch.nothing")
