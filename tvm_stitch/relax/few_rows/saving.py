# SPDX-License-Identifier: Apache-2.0
"""Save objects as text, if TVM can. With apache-tvm-ffi 0.1.15 that ends the process (``ToJSONGraph``)."""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ...support.child_process import ChildFailed, in_child

SAVES = "0.1.14.post1"
"""A release of TVM's FFI with which TVM 0.27 saves objects."""


@functools.cache
def why_not_saved() -> str:
    """Return the reason why TVM saves nothing here, and what to do, or "" if it does.

    Other releases than ``SAVES`` are tried, in a child process.
    """
    version = str(tvm_ffi.__version__)
    if version == SAVES:
        return ""
    try:
        in_child(lambda: str(tvm.ir.save_json(relax.const(1.0, "float32"))))
    except ChildFailed as error:
        return f"TVM saves no modules with apache-tvm-ffi {version} ({error}): pip install apache-tvm-ffi=={SAVES}"
    return ""


def saved(value: Any) -> Any:
    """Return an attribute's value from which :func:`loaded` makes the object again.

    It is text, which dumps of modules hold. If TVM saves nothing, it is the object itself.
    """
    return value if why_not_saved() else tvm.ir.save_json(value)


def loaded(attribute: Any) -> Any:
    """Return the object of an attribute that :func:`saved` returned."""
    return tvm.ir.load_json(attribute) if isinstance(attribute, str) else attribute
