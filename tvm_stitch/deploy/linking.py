# SPDX-License-Identifier: Apache-2.0
"""The C++ compiler by which TVM links a model's library: found before the work begins, its failures in a line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..target import other_machine


class LinkError(RuntimeError):
    """A library cannot be linked; the message says why, and what to do."""


def check_linker(target: Any) -> None:
    """Raise LinkError where no compiler is found that TVM would link a library for the target with.

    Args:
        target: a TVM Target.
    """
    from tvm.support.cc import get_cc

    found = get_cc()
    if found is None:
        raise LinkError("a library is linked by a C++ compiler, and none is found: install g++, or set CXX")
    if shutil.which(found) is None:
        raise LinkError(
            f"a library is linked by a C++ compiler, and there is no {found}, which CXX or CC names"
        )
    named = os.environ.get("CXX") or os.environ.get("CC")
    if not named and (machine := other_machine(target)):
        raise LinkError(
            f"the library is for {machine}: set CXX to a compiler that links for it, such as {machine}-linux-gnu-g++"
        )


@contextlib.contextmanager
def linking(path: Path) -> Iterator[None]:
    """Around what links a library.

    Raises:
        LinkError: where the compiler fails, with its first complaint.
        RuntimeError: as it is, where it fails for want of space on a disk.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "Compilation error:" not in text or os.strerror(errno.ENOSPC) in text:
            raise  # of a full disk the command line says more
        lines = [line.strip() for line in text.partition("Compilation error:")[2].splitlines()]
        told = [line for line in lines if line and not line.startswith("Command line:")]
        errors = [
            line for line in told if re.search(r"\b(error|cannot|fatal|No such|No space)\b", line, re.I)
        ]
        command = next((line for line in lines if line.startswith("Command line:")), "")
        compiler = (command.removeprefix("Command line:").split() or ["the C++ compiler"])[0]
        said = (errors or told or ["it says nothing"])[0]
        raise LinkError(f"{path.name} cannot be linked by {compiler} (CXX names another): {said}") from error
