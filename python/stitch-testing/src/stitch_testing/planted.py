# SPDX-License-Identifier: Apache-2.0
"""Plant one bug in a generated kernel. Such kernels are known to be wrong, so they test a detector.

Examples::

    source = planted(source, "grid-barrier", 0)      # CUDA text without its first grid barrier
    lowered = planted(lowered, "shared-scratch", ("s0", "s1"))
    run_lowered(planted(lowered, "extra-block"), inputs, options=Options(resident_blocks=132))
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args, overload

from cuda_emulator import Launch, Lowered

Barrier = Literal["grid-barrier", "cluster-barrier", "block-barrier"]
Bug = Literal["grid-barrier", "cluster-barrier", "block-barrier", "shared-scratch", "extra-block"]
"""Bugs to plant: one barrier of a kind removed, two scratch buffers in the same memory, or a block too many."""

BUGS: tuple[Bug, ...] = get_args(Bug)
COOPERATIVE = "tirx.use_cooperative_launch"

_ASM = r"(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(\s*"
_BARRIERS: dict[str, str] = {
    "grid-barrier": r"(?:\w+::)*this_grid\(\)\.sync\(\);",
    "cluster-barrier": r"(?:\w+::)*this_cluster\(\)\.sync\(\);"
    rf'|{_ASM}"barrier\.cluster\.arrive[^;]*;[^;]*;\s*{_ASM}"barrier\.cluster\.wait[^;]*;[^;]*;',
    "block-barrier": r"__syncthreads\(\);",
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAMESPACE = re.compile(r"\bnamespace\s+\w+\s*=\s*[\w:]+\s*;")
_FUNCTION = re.compile(
    r"__(?P<kind>global|device)__(?P<middle>[^;{}]*?)\b(?P<name>\w+)\s*\((?P<params>[^(){};]*)\)\s*\{"
)


@dataclass(frozen=True)
class _Function:
    """A function of a CUDA source: its kind (kernel or not), its parameters, and the position of its body."""

    name: str
    kernel: bool
    params: tuple[str, ...]
    start: int
    end: int


def _functions(source: str) -> tuple[str, list[_Function]]:
    """Return the source with blanked comments (positions stay the same), and its functions in order.

    Raises ValueError if braces do not match.
    """
    text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    functions = []
    for match in _FUNCTION.finditer(text):
        depth, at = 1, match.end()
        while depth:
            brace = re.compile(r"[{}]").search(text, at)
            if brace is None:
                raise ValueError(f"the body of {match['name']} has no end")
            depth += 1 if brace[0] == "{" else -1
            at = brace.end()
        params = tuple(p.strip() for p in match["params"].split(",") if p.strip())
        functions.append(_Function(match["name"], match["kind"] == "global", params, match.end(), at - 1))
    return text, functions


def _barrier_places(source: str, kind: Barrier, kernel: str | None = None) -> list[tuple[int, int]]:
    """Return the barriers of the kernels as (start, end) of the statement.

    A device function that contains only a barrier counts at its calls. Barriers of other device functions do not
    count.
    """
    text, functions = _functions(source)
    pattern = _BARRIERS[kind]
    for helper in functions:
        body = _NAMESPACE.sub("", text[helper.start : helper.end]).strip()
        if not helper.kernel and re.fullmatch(pattern, body):
            pattern += rf"|\b{helper.name}\(\);"
    bodies = [f for f in functions if f.kernel and kernel in (None, f.name)]
    return [m.span() for f in bodies for m in re.compile(pattern).finditer(text, f.start, f.end)]


def barriers(source: str | Lowered, kind: Barrier = "grid-barrier", kernel: str | None = None) -> int:
    """Count the barriers of a kind in the text of a source's kernels, or of one of them."""
    return len(_barrier_places(_text(source), kind, kernel))


def _pointers(function: _Function) -> dict[str, str]:
    """Return the parameters that point to writable memory, as name -> element type."""
    pointers = {}
    for param in function.params:
        match = re.fullmatch(r"(?P<type>[\w:\s]+?)\s*\*\s*(?:__restrict__\s*)?(?P<name>\w+)", param)
        if match and "const" not in match["type"].split():
            pointers[match["name"]] = match["type"]
    return pointers


def _closing(text: str, at: int) -> int:
    """Return the position behind the bracket or parenthesis that closes the one at ``at``."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise ValueError("a bracket has no end")


def _uses(body: str, name: str) -> tuple[bool, bool]:
    """Return whether the body reads and writes a pointer's memory. Passing its address on counts as both."""
    reads = writes = False
    for match in re.finditer(rf"\b{name}\b", body):
        before, at = body[: match.start()].rstrip(), match.end()
        if body[at : at + 1] == "[":
            end = _closing(body, at)
            if re.search(r"(?<!&)&\s*\(?$", before):
                return True, True
        elif re.search(r"\*\s*\(\s*[\w\s]+\*\s*\)\s*\($", before):  # *(float4*)(name + index)
            end = _closing(body, len(before) - 1)
        else:
            return True, True
        follows = re.match(r"\s*(?P<op>[-+*/|&^%]?=(?!=))?", body[end:])
        assert follows is not None
        writes |= follows["op"] is not None
        reads |= follows["op"] != "="
    return reads, writes


def scratch_pairs(source: str | Lowered, kernel: str | None = None) -> list[tuple[str, str]]:
    """Return pairs (keep, gone) of parameters that one kernel both writes and reads, like scratch, in both orders."""
    text, functions = _functions(_text(source))
    pairs: list[tuple[str, str]] = []
    for function in functions:
        if function.kernel and kernel in (None, function.name):
            body = text[function.start : function.end]
            scratch = [name for name in _pointers(function) if _uses(body, name) == (True, True)]
            pairs += itertools.permutations(scratch, 2)
    return pairs


def _share(source: str, keep: str, gone: str, kernel: str | None) -> str:
    """Return the source with every use of pointer ``gone`` replaced by ``keep``."""
    text, functions = _functions(source)
    for function in functions:
        pointers = _pointers(function)
        if function.kernel and kernel in (None, function.name) and {keep, gone} <= set(pointers):
            body = source[function.start : function.end]
            cast = f"(({pointers[gone]}*){keep})"
            return source[: function.start] + re.sub(rf"\b{gone}\b", cast, body) + source[function.end :]
    raise ValueError(f"no kernel has two writable pointers {keep} and {gone}")


def _text(subject: str | Lowered) -> str:
    return subject if isinstance(subject, str) else subject.source


def cooperative_kernels(lowered: Lowered) -> list[str]:
    """Return the kernels that are launched cooperatively, by their names in ``Lowered.kernels``."""
    return [name for name, params in lowered.kernels.items() if COOPERATIVE in params]


def places(subject: str | Lowered | Launch, bug: Bug, kernel: str | None = None) -> int:
    """Count the places at which ``planted`` can plant the bug. Indices are below this number."""
    if bug == "extra-block":
        if isinstance(subject, Launch):
            return 1
        return 0 if isinstance(subject, str) else len(cooperative_kernels(subject))
    if isinstance(subject, Launch):
        return 0
    if bug == "shared-scratch":
        return len(scratch_pairs(subject, kernel))
    return barriers(subject, bug, kernel)


@overload
def planted(subject: str, bug: Bug, index: int | Sequence[str] = ..., kernel: str | None = ...) -> str: ...
@overload
def planted(
    subject: Lowered, bug: Bug, index: int | Sequence[str] = ..., kernel: str | None = ...
) -> Lowered: ...
@overload
def planted(
    subject: Launch, bug: Bug, index: int | Sequence[str] = ..., kernel: str | None = ...
) -> Launch: ...


def planted(
    subject: str | Lowered | Launch, bug: Bug, index: int | Sequence[str] = 0, kernel: str | None = None
) -> str | Lowered | Launch:
    """Return the same kernels with one bug.

    Parameters
    ----------
    subject : CUDA text, a lowered module (its text is changed), or a launch.
    bug : ``grid-barrier``, ``cluster-barrier``, ``block-barrier`` remove the barrier number ``index``, counted in the
        order of the text over all kernels. A barrier in a loop is removed from all rounds. ``shared-scratch`` puts
        the second buffer of a pair into the memory of the first, which should not be the smaller one. ``index`` is
        the number of the pair, or the named parameters ``(keep, gone)``. ``extra-block`` adds a block (a cluster if
        there are clusters) to a launch, or to all launches of cooperative kernel number ``index``.
    kernel : count in this kernel only.

    Raises
    ------
    ValueError : if the subject has no such place.
    """
    if bug not in BUGS:
        raise ValueError(f"{bug!r} is none of the bugs {', '.join(BUGS)}")
    count = places(subject, bug, kernel)
    if isinstance(index, int) and not 0 <= index < count:
        raise ValueError(f"{bug} number {index} cannot be planted: there are {count} places for it")
    if isinstance(subject, Launch):
        return replace(subject, grid=(subject.grid[0] + subject.cluster[0], *subject.grid[1:]))
    if bug == "extra-block":
        assert isinstance(subject, Lowered) and isinstance(index, int)
        name = cooperative_kernels(subject)[index]
        more = {**subject.extra_blocks, name: subject.extra_blocks.get(name, 0) + 1}
        return replace(subject, extra_blocks=more)
    source = _text(subject)
    if bug == "shared-scratch":
        keep, gone = scratch_pairs(source, kernel)[index] if isinstance(index, int) else index
        changed = _share(source, keep, gone, kernel)
    else:
        assert isinstance(index, int)
        start, end = _barrier_places(source, bug, kernel)[index]
        changed = source[:start] + ";" + source[end:]
    return changed if isinstance(subject, str) else replace(subject, source=changed)
