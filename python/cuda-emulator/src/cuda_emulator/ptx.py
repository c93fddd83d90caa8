# SPDX-License-Identifier: Apache-2.0
"""Rewrite inline PTX of a kernel into calls of the emulator's runtime."""

from __future__ import annotations

import re

_TYPES = {
    "f32": "float",
    "f64": "double",
    "b32": "unsigned",
    "u32": "unsigned",
    "s32": "int",
    "b64": "unsigned long long",
    "u64": "unsigned long long",
    "s64": "long long",
    "b16": "unsigned short",
    "u16": "unsigned short",
}
_REGISTERS = {
    "cluster_ctarank": "(emu_cluster_rank3().x + emu_cluster_dim().x * (emu_cluster_rank3().y"
    " + emu_cluster_dim().y * emu_cluster_rank3().z))",
    "cluster_nctarank": "(emu_cluster_dim().x * emu_cluster_dim().y * emu_cluster_dim().z)",
    "laneid": "((emu_thread_idx().x + emu_block_dim().x * (emu_thread_idx().y"
    " + emu_block_dim().y * emu_thread_idx().z)) % 32)",
}
for _axis in "xyz":
    _REGISTERS[f"cluster_ctaid.{_axis}"] = f"emu_cluster_rank3().{_axis}"
    _REGISTERS[f"cluster_nctaid.{_axis}"] = f"emu_cluster_dim().{_axis}"
    _REGISTERS[f"clusterid.{_axis}"] = f"(emu_block_idx().{_axis} / emu_cluster_dim().{_axis})"
    _REGISTERS[f"nclusterid.{_axis}"] = f"(emu_grid_dim().{_axis} / emu_cluster_dim().{_axis})"

_ASM = re.compile(r"\b(?:__asm__|asm)\b\s*(?:(?:__volatile__|volatile)\b\s*)?\(")
# Fences that release to the whole cluster, in PTX's order of qualifiers or that of its examples.
_FENCE = re.compile(
    r"membar\.(gl|sys)|fence(\.(sc|acq_rel|release))?\.(cluster|gpu|sys)|fence\.(cluster|gpu|sys)\.(sc|acq_rel)"
)
# Registers in braces.
_VECTOR = {count: r"\{" + ", ?".join([r"%(\d+)"] * count) + r"\}" for count in (2, 4)}
# A load of one, two or four registers under a cache policy.
_CACHED_LOAD = re.compile(
    r"ld\.global(?:\.L2::(?:cache_hint|64B|128B|256B))?(?:\.v(?P<count>[24]))?\.(?P<type>b32|f32|u16)"
    r" (?P<into>\{[^}]*\}|%\d+),"
    r" \[%(?P<address>\d+)\](?:, %\d+)?"
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def rewrite_ptx(source: str) -> str:
    """Replace every inline assembly statement. Lines keep their numbers.

    An instruction that is not emulated becomes a call that reports "unsupported" when a thread reaches it.
    """
    pieces: list[str] = []
    at = 0
    while match := _ASM.search(source, at):
        if _in_directive(source, match.start()):
            pieces.append(source[at : match.end()])
            at = match.end()
            continue
        end = _closing(source, match.end())
        statement = source[match.end() : end]
        pieces.append(source[at : match.start()])
        pieces.append(
            "(" + _translate(statement).rstrip() + ")" + "\n" * source.count("\n", match.start(), end)
        )
        at = end + 1
    pieces.append(source[at:])
    return "".join(pieces)


def _in_directive(source: str, at: int) -> bool:
    return source[source.rfind("\n", 0, at) + 1 : at].lstrip().startswith("#")


def _closing(source: str, at: int) -> int:
    """Return the index of the parenthesis that closes the one before ``at``. Strings are skipped."""
    depth = 1
    while at < len(source):
        if source[at] == '"':
            string = _STRING.match(source, at)
            if string is None:
                break
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if depth == 0:
            return at
        at += 1
    raise ValueError("inline assembly without a closing parenthesis")


def _sections(statement: str) -> list[str]:
    """Split at colons outside of parentheses and strings (``::`` counts as two)."""
    sections, start, depth, at = [], 0, 0, 0
    while at < len(statement):
        char = statement[at]
        if char == '"' and (string := _STRING.match(statement, at)):
            at = string.end()
            continue
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == ":" and depth == 0:
            sections.append(statement[start:at])
            start = at + 1
        at += 1
    return [*sections, statement[start:]]


def _operands(section: str) -> list[str]:
    """Return the C expressions of one operand list."""
    expressions, at = [], 0
    while (open_at := section.find("(", at)) >= 0:
        end = _closing(section, open_at + 1)
        expressions.append(section[open_at + 1 : end].replace("\n", " "))
        at = end + 1
    return expressions


def _translate(statement: str) -> str:
    sections = _sections(statement)
    template = " ".join("".join(_STRING.findall(sections[0])).replace("\\n", " ").replace("\\t", " ").split())
    outs = _operands(sections[1]) if len(sections) > 1 else []
    ins = _operands(sections[2]) if len(sections) > 2 else []
    operands = outs + ins

    def operand(index: str) -> str:
        return f"({operands[int(index)]})"

    def listed(*indices: str) -> str:
        return ", ".join(map(operand, indices))

    text = template.rstrip("; ")
    if m := re.fullmatch(r"barrier\.cluster\.arrive(\.release|\.relaxed)?(\.aligned)?", text):
        return f"emu_cluster_arrive(__LINE__, {int(m[1] != '.relaxed')})"
    if m := re.fullmatch(r"barrier\.cluster\.wait(\.acquire)?(\.aligned)?", text):
        return "emu_cluster_wait(__LINE__)"
    if m := re.fullmatch(r"mapa(?:\.shared::cluster)?\.u32 %(\d+), %(\d+), %(\d+)", text):
        return f"{operand(m[1])} = emu_map_rank({operand(m[2])}, {operand(m[3])})"
    if m := re.fullmatch(
        r"ld(?:\.volatile|\.relaxed\.\w+)?\.shared(?:::cluster|::cta)?\.(\w+) %(\d+), \[%(\d+)\]", text
    ):
        if m[1] in _TYPES:
            kind = _TYPES[m[1]]
            value = f"emu::load_shared<{kind}>({operand(m[3])})"
            return f"{operand(m[2])} = emu::read_bits<{kind}>({operand(m[2])}, {value})"
    if m := re.fullmatch(rf"ld\.shared(?:::cluster|::cta)?\.v4\.f32 {_VECTOR[4]}, \[%(\d+)\]", text):
        *into, address = m.groups()
        loads = (f"emu::load_shared<float>({operand(address)} + {4 * i})" for i in range(4))
        return ", ".join(f"{operand(i)} = {load}" for i, load in zip(into, loads))
    if m := re.fullmatch(
        r"st(?:\.volatile|\.relaxed\.\w+)?\.shared(?:::cluster|::cta)?\.(\w+) \[%(\d+)\], %(\d+)", text
    ):
        if m[1] in _TYPES:
            kind = _TYPES[m[1]]
            return f"emu::store_shared<{kind}>({operand(m[2])}, emu::to_bits<{kind}>({operand(m[3])}))"
    if m := _CACHED_LOAD.fullmatch(text):
        kind, into = _TYPES[m["type"]], re.findall(r"\d+", m["into"])
        vector = f"{'float' if kind == 'float' else 'uint'}{len(into)}"
        loaded = f"load_global<{kind}>" if len(into) == 1 else f"load_vector<{vector}>"
        return f"emu::{loaded}({operand(m['address'])}, {listed(*into)})"
    if re.fullmatch(r"createpolicy\.fractional\.L2::evict_\w+\.b64 %\d+(?:, [\w.]+)?", text):
        return f"{operand('0')} = 0"  # caches are not emulated
    if m := re.fullmatch(r"mov\.u(?:32|64) %(\d+), %%?([\w.]+)", text):
        if m[2] in _REGISTERS:
            return f"{operand(m[1])} = {_REGISTERS[m[2]]}"
    if re.fullmatch(r"\{ ?\.reg \.u64 \w+; cvta\.to\.shared\.u64 \w+, %1; cvt\.u32\.u64 %0, \w+; ?\}", text):
        return f"{operand('0')} = emu_to_shared((const void*){operand('1')})"
    if re.fullmatch(r"bar(?:rier)?\.(?:cta\.)?sync(?:\.aligned)? 0", text):
        return "emu_block_barrier(__LINE__, 0, 0)"
    if m := re.fullmatch(r"lop3\.b32 %(\d+), %(\d+), %(\d+), %(\d+), (0x[0-9a-f]+|\d+)", text):
        result, *three = (operand(index) for index in m.groups()[:4])
        return f"{result} = emu::logic({', '.join(three)}, {int(m[5], 0)})"
    if m := re.fullmatch(r"not\.b32 %(\d+), %(\d+)", text):
        return f"{operand(m[1])} = ~{operand(m[2])}"
    if m := re.fullmatch(r"(max|min)\.NaN\.f32 %(\d+), %(\d+), %(\d+)", text):
        result, x, y = operand(m[2]), operand(m[3]), operand(m[4])
        sign = ">" if m[1] == "max" else "<"
        return f"{result} = {x} {sign} {y} || {x} != {x} ? {x} : {y}"
    if m := re.fullmatch(r"ex2\.approx(?:\.ftz)?\.f32 %(\d+), %(\d+)", text):
        return f"{operand(m[1])} = __builtin_exp2f({operand(m[2])})"
    if m := re.fullmatch(
        rf"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared(?:::cta)?\.b16 {_VECTOR[4]}, \[%(\d+)\]", text
    ):
        return f"emu::load_matrices<{int(bool(m[1]))}>(__LINE__, {listed(*m.groups()[1:])})"
    if m := re.fullmatch(
        rf"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32 "
        rf"{_VECTOR[4]}, {_VECTOR[4]}, {_VECTOR[2]}, {_VECTOR[4]}",
        text,
    ):
        numbers = m.groups()[1:]
        if numbers[:4] == numbers[10:]:  # in place: the only form in generated code
            kind = {"f16": "half", "bf16": "bf16"}[m[1]]
            return f"emu::multiply_add<emu::{kind}_to_float>(__LINE__, {listed(*numbers[:10])})"
    if m := re.fullmatch(
        r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"
        r" \[%(\d+)\], \[%(\d+)\], (\d+), %(\d+)(?:, %\d+)?",
        text,
    ):
        return f"emu_copy_async({operand(m[1])}, {operand(m[2])}, {m[3]}, {operand(m[4])})"
    if text == "griddepcontrol.wait":
        return "emu_wait_for_kernels_in_front()"
    if text == "cp.async.wait_all":
        return "emu_wait_for_copies()"
    if text == "cp.async.commit_group":
        return "emu_end_copy_group()"
    if m := re.fullmatch(r"cp\.async\.wait_group (\d+)", text):
        return f"emu_wait_for_copy_groups({m[1]})"
    if m := re.fullmatch(r"mbarrier\.init\.shared(?:::cta)?\.b64 \[%(\d+)\], %(\d+)", text):
        return f"emu_mbarrier_init({listed(*m.groups())}, __LINE__)"
    if m := re.fullmatch(
        r"mbarrier\.arrive\.expect_tx(?:\.release\.\w+)?\.shared(?:::cta|::cluster)?\.b64 _, \[%(\d+)\], %(\d+)",
        text,
    ):
        return f"emu_mbarrier_expect({listed(*m.groups())}, __LINE__)"
    if m := re.fullmatch(
        r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes\.(\w+)"
        r" \[%(\d+)\], %(\d+), \[%(\d+)\]",
        text,
    ):
        if m[1] in _TYPES:
            kind = _TYPES[m[1]]
            bits = f"emu::to_bits<{kind}>({operand(m[3])})"
            return f"emu_store_async({operand(m[2])}, {bits}, sizeof({kind}), {operand(m[4])}, __LINE__)"
    if m := re.fullmatch(
        r"\{ \.reg \.pred (\w+); mbarrier\.try_wait\.parity(?:\.acquire\.\w+)?\.shared::cta\.b64 \1, \[%(\d+)\],"
        r" %(\d+); selp\.b32 %(\d+), 1, 0, \1; \}",
        text,
    ):
        return f"{operand(m[4])} = emu_mbarrier_wait({listed(m[2], m[3])}, __LINE__)"
    if text == "fence.mbarrier_init.release.cluster":
        return "emu_mbarrier_fence()"
    if _FENCE.fullmatch(text):
        return "emu_fence()"
    if re.fullmatch(r"prefetch\.global\.L[12] \[%\d+\]", text):
        return "(void)0"
    if re.fullmatch(
        r"|(membar|fence)[\w.:]*", text
    ):  # of a block, of proxies, acquire only: they release nothing
        return "(void)0"
    escaped = ("PTX is not emulated: " + template).replace("\\", "\\\\").replace('"', '\\"')
    return f'emu_unsupported(__LINE__, "{escaped}")'
