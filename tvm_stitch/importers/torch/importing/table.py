# SPDX-License-Identifier: Apache-2.0
"""The operators that are imported, and whose converter does it. All others are refused by name, before the import.

``scripts/opinfo.py`` compares the imported ones with PyTorch on PyTorch's own samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from ..complexes.parts import described_kind, touches_complex
from ..complexes.table import complex_operators
from .unsupported import Unsupported, described, name_of

THEIRS = frozenset(
    (
        "_assert_async.default"
        " _assert_async.msg _assert_scalar.default _assert_tensor_metadata.default _local_scalar_dense.default"
        " _sparse_addmm.default _sparse_mm.default add cond eq floordiv ge getitem gt"
        " hardsigmoid.default hardswish.default item.default le lt mod mul ne neg pixel_shuffle.default"
        " silu.default sub sym_constrain_range_for_size.default sym_size.int to_sparse.default"
        " scaled_dot_product_attention.default linear.default transpose.int"
        " unbind.int stack.default tril.default triu.default masked_fill.Scalar"
        " expand_as.default flatten.using_ints"
    ).split()
)
"""Overloads that TVM's own converters import right."""

RANDOM = (
    "it draws random numbers, and a compiled function has none; export the model after model.eval(),"
    " or pass the numbers as an input"
)
LINEAR_ALGEBRA = "decompositions of matrices are not imported"
LOOPS = (
    "this loop is not imported; write it with torch.while_loop or torch.scan, or as a Python for statement with a"
    " fixed number of steps, which torch.export unrolls"
)

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        "bernoulli.default bernoulli.p cauchy.default exponential.default geometric.default log_normal.default"
        " multinomial.default native_dropout.default dropout.default normal.float_Tensor normal.float_float"
        " normal.Tensor_Tensor normal.Tensor_float normal_functional.default"
        " poisson.default rand.default rand_like.default randint.default randint.low randint_like.default"
        " randint_like.low_dtype randn.default randn_like.default randperm.default rrelu_with_noise_functional.default"
        " uniform.default rand.generator randn.generator dropout_.default alpha_dropout.default".split(),
        RANDOM,
    ),
    **dict.fromkeys(
        "_linalg_det.default _linalg_eigh.default _linalg_slogdet.default _linalg_solve_ex.default _linalg_svd.default"
        " cholesky.default cholesky_inverse.default cholesky_solve.default geqrf.default linalg_cholesky_ex.default"
        " linalg_eig.default linalg_householder_product.default linalg_inv_ex.default linalg_ldl_factor_ex.default"
        " linalg_ldl_solve.default linalg_lstsq.default linalg_lu.default linalg_lu_factor_ex.default"
        " linalg_lu_solve.default linalg_matrix_exp.default linalg_pinv.atol_rtol_tensor linalg_qr.default"
        " linalg_solve_triangular.default lu_unpack.default ormqr.default triangular_solve.default"
        " _linalg_eigvals.default".split(),
        LINEAR_ALGEBRA,
    ),
    **dict.fromkeys(("map", "map_impl", "associative_scan"), LOOPS),
    "sym_storage_offset.default": (
        "the position of this view depends on numbers of an input; pass the positions as Python integers"
    ),
}
"""Reasons why operators are refused, by overload."""

UNKNOWN = "there is no converter for it; pass one in custom_convert_map, or write the model without it"


def reason_for(name: str) -> str:
    """Return the reason why an overload is refused."""
    return REFUSED.get(name, UNKNOWN)


def check_operators(graph_module: Any, known: Set[str]) -> None:
    """Raise an error that names all operators of a program that are not imported.

    Args:
        graph_module: the module of a program's graph, with those of its branches.
        known: overloads that have a converter of this package or of the caller.

    Raises:
        Unsupported: if there are some.
    """
    import torch.fx

    known = known | THEIRS | complex_operators()
    reasons = [
        (described(node), reason_for(name_of(node)))
        for module in graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function" and name_of(node) not in known
    ]
    reasons += [
        (described(node), described_kind(node))
        for module in graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function" and touches_complex(node) and name_of(node) not in complex_operators()
    ]
    if reasons:
        raise Unsupported(reasons)
