# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs of ``torch.compile`` on disk, so that another process need not compile them again.

An entry is the folder of a compiled model, and a digest of its files. Its name is a digest of all that the code depends
on: the exported graph, the values of its constants, the target, the options, this package's sources, and versions.

Entries appear whole or not at all. Those that were used least recently go first if the folder gets too large.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tvm

from ..config import StitchConfig
from ..deploy.cpu_flags import needed_flags
from ..deploy.folder import LIBRARY, MANIFEST, find_library
from ..deploy.linking import check_linker
from ..deploy.native_code import cache_folder
from ..deploy.versions import versions
from ..device import device_model
from ..relax.dump import NAMES as DUMP
from ..relax.library.calls import has_cublaslt, has_cudnn
from ..support.failures import error_text, reraise_fatal
from ..support.memory import parsed_bytes
from .saved import load_library, write
from .signature import Signature

_LOG = logging.getLogger(__name__)

LIMIT = "TVM_STITCH_GRAPH_CACHE"
"""Environment variable: the most bytes of all entries, such as ``4G``. With 0 nothing is kept or read."""
DEFAULT_LIMIT = 1 << 30
DIGEST = "digest"
"""File of an entry with the digest of the other files."""
_NEW = ".new-"
"""Beginning of the names of folders that are being written."""
_ABANDONED = 3600.0
"""Seconds after which such a folder is one of a process that ended."""


@dataclass(frozen=True)
class GraphCache:
    """Compiled graphs in a folder.

    Attributes:
        folder: the folder, which nobody else may write to.
        limit: the most bytes of all entries.
    """

    folder: Path
    limit: int

    @staticmethod
    def here() -> GraphCache | None:
        """Return the cache of this user, or None if the environment turns it off or it cannot be used."""
        text = os.environ.get(LIMIT, "").strip()
        limit = parsed_bytes(text) if text else DEFAULT_LIMIT
        if limit is None:
            _LOG.warning("compiled graphs are not kept: %s=%s is no number of bytes, such as 4G", LIMIT, text)
        if not limit or os.environ.get(DUMP):
            return None
        try:
            return GraphCache(cache_folder("graphs"), limit)
        except OSError as error:
            _LOG.warning("compiled graphs are not kept: %s", error)
            return None

    def key_of(
        self, program: torch.export.ExportedProgram, target: tvm.target.Target, config: StitchConfig
    ) -> str | None:
        """Return the name of a program's entry, or None if its constants do not fit or have no bytes."""
        constants = [x for x in program.state_dict.values() if isinstance(x, torch.Tensor)]
        if sum(x.nbytes for x in constants) > self.limit:
            return None
        return key_of(program, target, config)

    def get(self, key: str) -> tuple[tvm.relax.VMExecutable, Signature] | None:
        """Return a compiled graph and its signature, or None if it is not there. A damaged entry is removed."""
        entry = self.folder / key
        if not entry.is_dir():
            return None
        try:
            if (entry / DIGEST).read_text(encoding="ascii") != _digest_of_files(entry):
                raise ValueError("its files are not those that were written")
            library, data = find_library(entry)
            found = load_library(library), Signature.of_dict(data, {})
            os.utime(entry)
        except Exception as error:  # of many kinds, of files and of TVM
            reraise_fatal(error)
            if entry.is_dir():  # and no other process has just removed it
                _LOG.warning("a compiled graph in %s is compiled again: %s", entry, error_text(error))
                shutil.rmtree(entry, ignore_errors=True)
            return None
        return found

    def put(self, key: str, executable: Any, target: tvm.target.Target, signature: Signature) -> Any:
        """Keep a compiled graph. Return its executable, loaded from the new entry, so that code is generated once.

        A graph that cannot be kept is returned as it is, with a warning.
        """
        try:
            check_linker(target)
            new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.folder))
            try:
                write(
                    new,
                    executable,
                    target,
                    signature,
                    {"cpu_flags": needed_flags(target), "needs": []},
                    _LOG.debug,
                )
                (new / DIGEST).write_text(_digest_of_files(new), encoding="ascii")
                os.rename(new, self.folder / key)
            finally:
                shutil.rmtree(new, ignore_errors=True)
            executable = load_library(self.folder / key / LIBRARY)
            self._shrink()
        except Exception as error:  # of many kinds: full disks, linkers, another process that was faster
            reraise_fatal(error)
            if not (self.folder / key).is_dir():
                _LOG.warning("a compiled graph is not kept: %s", error_text(error))
        return executable

    def _shrink(self) -> None:
        """Remove the entries that were used least recently, until the others fit, and what processes left behind."""
        for each in self.folder.glob(f"{_NEW}*"):
            if time.time() - _used(each) > _ABANDONED:
                shutil.rmtree(each, ignore_errors=True)
        entries = sorted(
            (p for p in self.folder.iterdir() if not p.name.startswith(_NEW)), key=_used, reverse=True
        )
        total = 0
        for entry in entries:
            total += sum(size for size in map(_size, entry.glob("*")))
            if total > self.limit:
                shutil.rmtree(entry, ignore_errors=True)


def key_of(
    program: torch.export.ExportedProgram, target: tvm.target.Target, config: StitchConfig
) -> str | None:
    """Return the name of a program's entry, or None if a constant of the program has no bytes.

    Args:
        program: the program. Parameters and buffers that it has count with their values.
        target: the target.
        config: stitching options.
    """
    digest = hashlib.blake2b(digest_size=24)
    try:
        for part in _parts(program, target, config):
            data = part if isinstance(part, bytes) else part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
    except (TypeError, RuntimeError, NotImplementedError) as error:  # of constants that are no plain tensors
        reraise_fatal(error)
        return None
    return digest.hexdigest()


def _parts(
    program: torch.export.ExportedProgram, target: tvm.target.Target, config: StitchConfig
) -> Iterator[str | bytes]:
    """Yield texts and bytes that the code of a program depends on."""
    lines = str(program).splitlines()
    yield "\n".join(line for line in lines if not line.lstrip().startswith("#"))  # comments name files
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"the constant {name} is no tensor")
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        yield f"{name} {value.dtype} {tuple(value.shape)}"
        yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    yield f"{target} {target.host} {config} {device_model(target, config)} {sorted(versions().items())}"
    if target.kind.name == "cuda":
        yield f"{has_cublaslt(config)()} {has_cudnn(config)()}"
    yield str(
        sorted(item for item in os.environ.items() if item[0].startswith("TVM_STITCH_") and item[0] != LIMIT)
    )
    yield _sources()


@cache
def _sources() -> str:
    """Return the digest of this package's sources, which change between versions while it is developed."""
    digest = hashlib.blake2b(digest_size=24)
    package = Path(__file__).parents[1]
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".h", ".cc", ".cuh")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


def _digest_of_files(entry: Path) -> str:
    digest = hashlib.blake2b(digest_size=24)
    for name in (LIBRARY, MANIFEST):
        with (entry / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def _used(entry: Path) -> float:
    """Return the time when an entry was used, or 0 if another process has removed it."""
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
