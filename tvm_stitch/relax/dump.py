# SPDX-License-Identifier: Apache-2.0
"""Write the module after a phase or a pass to a file that TVM reads again.

The environment variable ``TVM_STITCH_DUMP`` names phases and passes, separated by commas. ``all`` means every phase.
``TVM_STITCH_DUMP_TO`` names the folder (default: ``tvm_stitch_dump``). In Python, :func:`dumping` does the same.

Files are TVMScript. Constants are in the file's metadata, so that :func:`read_dump` gives an equal module.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from ..records.decisions import without_decisions
from ..support.interrupts import carrying
from .few_rows.saving import why_not_saved

NAMES, FOLDER = "TVM_STITCH_DUMP", "TVM_STITCH_DUMP_TO"
"""Names of the environment variables."""
DEFAULT_FOLDER = "tvm_stitch_dump"
ALL = "all"


@dataclass(frozen=True)
class Dump:
    """The modules to write, and the folder to write them to.

    Attributes:
        names: of phases and passes. A pass's name up to its dot means all its instances.
        folder: is created if it does not exist.
        numbers: the positions of phases and passes in the pipeline.
    """

    names: frozenset[str]
    folder: Path
    numbers: Mapping[str, str]

    def asks_for(self, name: str) -> bool:
        """Return True if a phase or a pass is asked for."""
        return bool({name, name.partition(".")[0]} & self.names)

    def after(self, name: str) -> Any:
        """Return a pass that writes the module that it is given, and returns it as it is.

        The file is ``<position>-<name>.py``. A step that runs several times writes its file anew, so the module of the
        last attempt stays.

        Args:
            name: the phase or pass that has just run.
        """

        @tvm.transform.module_pass(opt_level=0, name=f"Dump.{name}")
        @carrying
        def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = f"# The module after {name}.\n{_readable(without_decisions(mod).script(show_meta=True))}\n"
            (self.folder / f"{self.numbers[name]}-{name}.py").write_text(text, encoding="utf-8")
            return mod

        return run


def read_dump(path: str | Path) -> tvm.IRModule:
    """Return the module of a file that a dump wrote."""
    return tvm.script.from_source(Path(path).read_text(encoding="utf-8"))


_asked: ContextVar[tuple[str, Path] | None] = ContextVar("tvm_stitch_dump", default=None)


@contextmanager
def dumping(names: str, to: str | Path = DEFAULT_FOLDER) -> Iterator[None]:
    """Let pipelines of this thread write the modules after the named phases and passes, while this is active.

    Args:
        names: separated by commas. ``all`` means every phase.
        to: the folder to write to.
    """
    token = _asked.set((names, Path(to)))
    try:
        yield
    finally:
        _asked.reset(token)


def asked_dump(numbers: Mapping[str, str]) -> Dump | None:
    """Return the dump that :func:`dumping` or the environment asks for, or None if nothing is asked for.

    Args:
        numbers: the positions of all phases (``"06"``) and passes (``"06-02"``) by their names.

    Raises:
        ValueError: for a name that is neither a phase nor a pass.
        RuntimeError: if this release of TVM's FFI crashes when it saves a module.
    """
    text, folder = _asked.get() or (os.environ.get(NAMES, ""), Path(os.environ.get(FOLDER) or DEFAULT_FOLDER))
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        return None
    stems = {name.partition(".")[0] for name in numbers}
    for name in sorted(names - {ALL} - set(numbers) - stems):
        near = difflib.get_close_matches(name, [*numbers, ALL], 1)
        more = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"cannot dump after {name!r}, which is neither a phase nor a pass{more}")
    if reason := why_not_saved():
        raise RuntimeError(f"{', '.join(sorted(names))} cannot be dumped: {reason}")
    if ALL in names:
        names |= {name for name, number in numbers.items() if "-" not in number}
    return Dump(names, folder, numbers)


def _readable(text: str) -> str:
    """Return TVMScript that TVM's parser takes: its printer writes ``T.prefetch``, which the parser does not know."""
    return text.replace("T.prefetch(", 'T.call_intrin("", "tirx.prefetch", ')
