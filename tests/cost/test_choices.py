# SPDX-License-Identifier: Apache-2.0
"""Constants of choice are fields of a device's choices, and other numbers are facts with a reason."""

from __future__ import annotations

import ast
import dataclasses
import re

from tests.kept import package_sources
from tvm_stitch.cost.choices import Choices
from tvm_stitch.device import GPUS

_NO_CHOICE = {
    "compute/cpu/amx/instruction.py": {
        "TILE_ROWS": "hardware",
        "ROW_BYTES": "hardware",
        "COLUMNS": "two registers of sums",
        "MOST_ROWS": "two registers of sums",
    },
    "plan/gpu/occupancy.py": {
        "MAX_REGISTERS": "what an instruction can name",
        "OPT_IN_BYTES": "of CUDA, and of TVM's runtime",
        "_REGISTER_UNIT": "hardware: how registers are given out",
        "_SUB_PARTITIONS": "hardware",
    },
    "plan/gpu/patches.py": {
        "PIECE_BYTES": "the most that an instruction copies",
        "_PIECES_OF_BANKS": "hardware",
    },
    "relax/rewriting/contents.py": {"MOST_REMEMBERED": "a bound of memory, which changes no result"},
    "plan/iteration/bounds/index_length.py": {
        "_DIVISION_COPIES": "of TVM's lowering: how often it writes the operands"
    },
    "plan/gpu/uncoalesced.py": {"_SECTOR_BYTES": "hardware: the least that memory moves"},
    "codegen/small_integers.py": {
        "_OFFSET": "the float whose lowest bits hold an integer",
        "_OFFSET_BITS": "its bits",
        "_EXACT": "integers that a type holds",
    },
    "codegen/gpu/matrix/ring.py": {"COPY_WORDS": "of a copy by cp.async"},
    "plan/rows/weight_ring.py": {
        "COPY_BYTES": "of a copy by cp.async",
        "ALIGNED_BYTES": "of TVM's buffers in shared memory",
    },
    "plan/rows/weights.py": {"VECTOR_BYTES": "of a vector load"},
    "plan/rows/factors.py": {"LARGEST": "of bfloat16: its mantissa"},
    "plan/rows/fields.py": {"MOST_VISITS": "a bound of time"},
    "plan/gpu/tile.py": {"MOST_BLOCKS": "CUDA's greatest grid", "BARRIER_BYTES": "of an mbarrier"},
    "codegen/gpu/memory/cache_policy.py": {"WORD": "of a register"},
    "codegen/gpu/reduce.py": {"WARP": "hardware"},
    "codegen/gpu/launch_check.py": {
        "_CUDA": "TVM's number of a kind of device",
        "_MULTIPROCESSORS": "TVM's number of an attribute",
        "_DEVICE_ID": "TVM's number of a field",
    },
    "repairs/tir/negation.py": {"_LEAST": "the least int32"},
    "compute/attention.py": {"SMALLEST_SCALE": "smaller scales become 0 in float32"},
    "compute/cpu/attention.py": {"_LOWEST": "the lowest float32"},
    "compute/cpu/tiles.py": {"CACHE_LINE": "hardware"},
    "compute/recurrent/cuda_plan.py": {
        "WARP": "hardware",
        "VECTOR": "of the kernel's CUDA source: the most floats that an instruction loads",
        "BARRIERS": "of the kernel's CUDA source: its memory before the states",
    },
    "compute/cuda/attention_few.py": {
        "LARGEST_HEAD": "of the kernel's CUDA source, in which a lane has at most two vectors of a row",
        "CLUSTERS": "the sizes of clusters that every device with clusters has",
        "LARGEST_UNITS_HEAD": "of the kernel's CUDA source: the registers of its threads",
        "_TILE": "of the instruction: the rows of a tile",
        "_RESIDENT": "of the kernel's CUDA source: the registers of its threads",
    },
    "compute/selection/ordered.py": {
        "INDEX_BITS": "of an int32 that is no less than 0",
        "LAST_INDEX": "the largest int32",
        "NOTHING": "the least int64",
    },
    "compute/selection/selection.py": {
        "MOST": "of the kernel's CUDA source: the groups of a block's threads"
    },
    "compute/selection/cpu_kernel.py": {"_ABOVE": "the largest int64"},
    "compute/selection/cuda_kernel.py": {
        "THREADS": "of the kernel's CUDA source",
        "CLUSTERS": "the sizes of clusters that every device with clusters has",
        "_CHUNK": "of the kernel's CUDA source: the elements in a block's registers",
    },
    "compute/cuda/attention_library.py": {
        "LARGEST_HEAD": "of cuDNN",
        "FIRST_FOR_WIDE_HEADS": "the first device on which cuDNN 9.0 takes them",
    },
    "compute/cuda/attention.py": {
        "FIRST_CAPABILITY": "the first device with the instructions",
        "LARGEST_HEAD": "of the kernel's CUDA source, whose threads have registers for so many",
        "THREADS": "of the kernel's CUDA source",
        "TILE": "of the kernel's CUDA source",
        "SMALL_HEAD": "of the kernel's CUDA source, which has other tiles above it",
        "_ALIGNMENT_BYTES": "the most that an instruction copies",
    },
    "compute/cuda/convolution.py": {"FIRST_CAPABILITY": "the first device with the instructions"},
    "compute/cuda/convolution_plan.py": {
        "DEPTH": "of the kernel's CUDA source",
        "STAGES": "of the kernel's CUDA source",
        "PLACE_WORDS": "of the kernel's CUDA source",
        "REGISTERS": "of a thread of the kernel's CUDA source",
        "_LARGEST": "the largest int32",
    },
    "compute/cuda/positions.py": {"FIRST": "an axis"},
    "compute/cuda/splits.py": {"VECTOR": "the most that an instruction loads"},
    "compute/recurrent/cell.py": {"GATES": "of kinds of cells", "DEFAULTS": "ONNX Runtime's"},
    "relax/attention/operands.py": {"LEADING_AXES": "of the kernels' arguments"},
    "relax/constants/computed_weights.py": {"_FILLED": "the values of operators"},
    "relax/constants/evaluated.py": {"_MOST_AXES": "of NumPy's arrays"},
    "relax/constants/views.py": {"_INTEGERS": "bits of types"},
    "relax/constants/weights.py": {"VALUE": "numbers of arguments"},
    "relax/legalize/aligned_regions.py": {"MOST_SAMPLES": "a limit that no finite region reaches"},
    "relax/legalize/arg_reductions.py": {"LARGEST_INT32": "the largest int32"},
    "relax/legalize/box_scores.py": {"THRESHOLD": "between the ranks 0 and 1", "LOWEST": "below all scores"},
    "relax/legalize/grid_samples.py": {"ALPHA": "PyTorch's and ONNX's"},
    "relax/legalize/short_scans.py": {"SCANS": "identities of operators"},
    "relax/legalize/widening_casts.py": {"INJECTIVE": "TVM's number of a pattern"},
    "relax/library/calls.py": {"_BFLOAT16_FROM": "the first compute capability with bfloat16"},
    "relax/lowering/argument_checks.py": {
        "PACKED": "TVM's number of a calling convention",
        "MOST_AXES": "of the C++ that checks arguments",
        "ANY_EXTENT": "a mark of the C++ that checks arguments",
    },
    "relax/lowering/kernels.py": {"HOST_LEVEL": "of LLVM for the host's code, whatever the device"},
    "relax/lowering/serial_tasks.py": {"STACK_BYTES": "TVM's"},
    "relax/precision/expected_means.py": {
        "SAMPLES": "of statistics: how exact a mean is",
        "TRUSTED": "of statistics: a part of a variance",
        "MOST_TAPS": "of statistics: how exact a mean is",
    },
    "relax/precision/half.py": {"_FOLLOWS": "TVM's number of a policy"},
    "relax/quantize/products.py": {"LARGEST_SUM": "the largest int32", "LARGEST_BYTE": "the largest uint8"},
    "relax/quantize/unsigned.py": {"SHIFT": "from int8 to uint8"},
    "relax/rewriting/operators.py": {"OPAQUE_PATTERN": "TVM's number of a pattern"},
    "repairs/tir/device_math.py": {
        "ERF_NUMERATOR": "coefficients",
        "ERF_DENOMINATOR": "coefficients",
    },
    "relax/stitch/numbers.py": {"_LARGEST": "beyond TVM's literals", "_LEAST": "the least int32"},
}
"""Numbers that are facts of devices, of TVM or of formats, with what they are."""
_MATHEMATICS = "codegen/vector_math/"  # coefficients, and bit patterns of floats


def _numbers(text: str) -> dict[str, int]:
    """Return names in capitals that a module binds to numbers, or to collections of them, and in which line."""
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        constants = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
        called = any(isinstance(n, (ast.Call, ast.Lambda)) for n in ast.walk(node.value))
        if called or not any(type(value) in (int, float) for value in constants):
            continue
        found |= {name: node.lineno for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)}
    return found


_CHOICES = "cost/choices/"
_LAYERS = ("plan/", "scope/", "codegen/", "cost/", "compute/", "relax/", "relay/templates/", "repairs/tir/")


def test_constants_of_choice_are_fields_of_choices() -> None:
    found: dict[str, dict[str, int]] = {}
    for name, text in package_sources():
        short = name.removeprefix("tvm_stitch/")
        if short.startswith(_LAYERS):
            if not short.startswith(_MATHEMATICS) and (numbers := _numbers(text)):
                found[short] = numbers
    assert {name: set(numbers) for name, numbers in found.items()} == {
        name: set(reasons) for name, reasons in _NO_CHOICE.items()
    }


def test_every_constant_of_choice_is_used_and_documented() -> None:
    """Neighbouring fields may share the documentation behind them."""
    sources = dict(package_sources())
    used = "".join(text for name, text in sources.items() if f"/{_CHOICES}" not in name)
    names: list[str] = []
    for name, text in sources.items():
        if f"/{_CHOICES}" not in name:
            continue
        for made in [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]:
            fields = [node for node in made.body if isinstance(node, ast.AnnAssign)]
            names += [ast.unparse(node.target) for node in fields]
            for node, following in zip(made.body, [*made.body[1:], None]):
                shares = isinstance(node, ast.AnnAssign) and isinstance(following, ast.AnnAssign)
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert not isinstance(node, ast.AnnAssign) or shares or documented, ast.unparse(node)
    assert set(names) == {field.name for field in dataclasses.fields(Choices)} and len(names) > 140
    within = "".join(text for name, text in sources.items() if f"/{_CHOICES}" in name)
    unused = [name for name in names if not re.search(rf"choices\.{name}\b", used)]
    assert [name for name in unused if len(re.findall(rf"(?<!`)\b{name}\b", within)) < 2] == []


def test_choices_are_frozen_numbers_of_a_device() -> None:
    h200 = GPUS["h200"]
    assert hash(Choices()) == hash(h200.choices) and Choices() == h200.choices
    changed = h200.with_choices(split_gain=0.5)
    assert changed.choices.split_gain == 0.5 != h200.choices.split_gain
    assert dataclasses.replace(changed, choices=h200.choices) == h200


def test_numbers_are_found() -> None:
    text = "A = 3\n_B: int = -4\nC, D = 1, 2.5\nE = {(1, 2): 0.5}\nF = 'x'\nG = f(3)\nh = 7\nI = True\nJ = A * 2\n"
    assert _numbers(text) == {"A": 1, "_B": 2, "C": 3, "D": 3, "E": 4, "J": 9}
