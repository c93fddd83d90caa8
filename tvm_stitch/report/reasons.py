# SPDX-License-Identifier: Apache-2.0
"""The meaning of every reason, and advice. This is the only place for it, and the user guide's table is made from
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A kind of reason.

    Args:
        shown: the guide's text of the reason, with varying texts left out.
        pattern: a regular expression that finds it in a reason.
        meaning: its meaning, as the guide's Markdown.
        advice: what users can do about it, as the guide's Markdown.
    """

    shown: str
    pattern: str
    meaning: str
    advice: str


ON_A_GPU = (
    "On CUDA a [grid-wide plan](reports.md#grid-wide-plans) takes both; what follows `grid-wide:` says why it did not. "
    "On a CPU nothing: two kernels are needed"
)

RULES = (
    Rule(
        "`compute-intensive`",
        r"^compute-intensive$",
        "A matmul, convolution or einsum (a sum of products of differently indexed reads)",
        "Nothing: it ends stitch ops by definition",
    ),
    Rule(
        "`computed in the kernel of ...`",
        r"^computed in the kernel of ",
        "An epilogue of a matmul or convolution (option `epilogues`)",
        "Nothing",
    ),
    Rule(
        "`reductions a and b have N and M rows`, `reduction a has N results, not M`",
        r"^reductions .* have .* rows|^reduction .* has .* results, not ",
        "Two reductions with different numbers of results: one row domain has one number of rows",
        ON_A_GPU,
    ),
    Rule(
        "`reduction ... is read at [...], outside its own row`",
        r"outside its own row",
        "A reduction's result is needed by another row than its own",
        "The same",
    ),
    Rule(
        "`... has a symbolic or empty shape, which a grid-wide plan does not serve`",
        r"has a symbolic or empty shape",
        "Values would have to cross blocks, for which all sizes must be known",
        "Fix the dimensions",
    ),
    Rule(
        "`output ... needs no reduction, and N rows of unknown length would leave the device idle`",
        r"would leave the device idle",
        "Few rows of [symbolic length](#symbolic-shapes) have a block each, which all of their kernel waits for",
        "Nothing: two kernels are faster",
    ),
    Rule(
        "`... would be in phase 9 of at most 8`, `more than 48 stages`",
        r"would be in phase|more than \d+ stages",
        "A grid-wide plan would be too long a kernel",
        "Nothing: several kernels are better",
    ),
    Rule(
        "`one grid-wide kernel would take ... us, apart they take ... us`",
        r"^one grid-wide kernel would take",
        "Values would cross blocks behind a barrier of the whole grid, which costs more than another launch",
        "Nothing: the cost model expects two kernels to be faster",
    ),
    Rule(
        "`one kernel, which reads or writes across memory, would take ... us, apart they take ... us`",
        r"^one kernel, which reads or writes across memory",
        "Neighbouring threads would read or write places far apart: large tensors whose innermost axis moves, beside a "
        "reduction",
        "Nothing: a kernel that only transposes turns patches in shared memory",
    ),
    Rule(
        "`outputs of N and M elements without a common row`, `output ... does not divide into N rows`",
        r"without a common row|do(es)? not divide into",
        "Element-wise operators of different sizes, nothing to align them by",
        "Nothing: they make kernels of their own",
    ),
    Rule(
        "`heavy ... would be computed again for every row`",
        r"would be computed again for every row",
        "More than four heavy values (exp, pow, tanh...) that all rows share would be computed by each",
        "Nothing: computed once, in a kernel of their own, they are cheaper",
    ),
    Rule(
        "`... gathers at indices that ... reduces to`, `... computed from ...`",
        r"gathers at indices",
        "A value of the same stitch op is gathered at indices that are neither integer inputs nor element-wise of such",
        "Nothing: the data goes through memory",
    ),
    Rule(
        "`joining them would make a cycle through an operator outside`",
        r"would make a cycle",
        "A path leaves the scope, through a matmul, say, and comes back",
        "Nothing: no kernel can wait for that",
    ),
    Rule(
        "`N operators exceed the limit`, `N arguments exceed the limit`, `it has more than 32 arguments`",
        r"exceed the limit|more than \d+ arguments",
        "The scope is full",
        "Raise `max_operators` or `max_arguments`; watch the compile time",
    ),
    Rule(
        "`N operators, reductions among them, exceed a CPU's 64`",
        r"exceed a CPU's",
        "LLVM's time to compile a loop with reductions grows with the square of what is in it",
        "Nothing: several kernels are better",
    ),
    Rule(
        "`TVM fuses them; as a stitch op of its own it would be one kernel more`",
        r"^TVM fuses them",
        "TVM computes it in the kernel of a neighbour that no stitch op can take, such as a sort",
        "Nothing: fewer kernels are better",
    ),
    Rule(
        "`block ... holds SeqStmt, not one store`, `a loop nest ends in ...`",
        r"^block .* holds |a loop nest ends in",
        "The operator is not a plain loop nest: sort, top-k of more than 64 elements, scatter, "
        "running sums of long rows or of symbolic ones",
        "Nothing; [extending.md](../extending.md) says how readable constructs are added",
    ),
    Rule(
        "`its results are used as one tuple`",
        r"its results are used as one tuple",
        "A call with several results that is returned whole, as `split` is",
        "Take its results apart (`TupleGetItem`) and return those",
    ),
    Rule(
        "`the function takes scalar arguments`",
        r"takes scalar arguments",
        "A call whose size or value argument is known at run time only",
        "Pass it as a tensor, or as a constant",
    ),
    Rule(
        "`... has no elements`",
        r"has no elements",
        "A static extent of 0",
        "Nothing: there is nothing to compute",
    ),
    Rule(
        "`what is left does not compile alone: ...`",
        r"^what is left does not compile",
        "TVM schedules an operator that no stitch op took only together with its neighbours; the whole module is "
        "compiled without stitching",
        "Nothing, or make the shape static. Seen on CUDA with a mean over all axes of a symbolic shape",
    ),
    Rule(
        "`computed by a kernel of its own`",
        r"^computed by a kernel of its own",
        "[Attention](gpu.md#attention), whose products and softmax are one kernel",
        "Nothing",
    ),
    Rule(
        "`computed by a function outside the module`",
        r"^computed by a function outside",
        "A library call, such as cuBLASLt's [products](gpu.md#matrix-products-on-a-gpu)",
        "Nothing",
    ),
    Rule(
        "`not a tensor function's call`",
        r"^not a tensor function's call",
        "A packed function that allocates its result, or control flow",
        "Nothing",
    ),
)
"""In the order of the guide's table. The first one that fits a reason counts."""


def explained(reason: str) -> tuple[str, str]:
    """Return the meaning of a reason and the advice, as plain text. Both are empty for an unknown reason."""
    for i, rule in enumerate(RULES):
        if re.search(rule.pattern, reason):
            meaning, advice = rule.meaning, rule.advice
            for before in reversed(RULES[:i]):  # "The same" is for readers of the table
                if advice != "The same":
                    break
                advice = before.advice
            return plain(meaning), plain(advice)
    return "", ""


def plain(markdown: str) -> str:
    """Return Markdown without its links and code marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")
