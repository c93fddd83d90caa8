# SPDX-License-Identifier: Apache-2.0
"""The graphs of a Relax module's stitch ops."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tvm_stitch.config import StitchConfig
from tvm_stitch.graph.ir import StitchGraph
from tvm_stitch.graph.reader import read
from tvm_stitch.relax.stitch.mark import MergeStitchOps
from tvm_stitch.relax.stitch.stitch_ops import STITCH_ATTR, StitchOps

from .random.graphs import emulated_target


def stitch_graphs(
    mod: tvm.IRModule, config: StitchConfig | None = None, target: tvm.target.Target | None = None
) -> list[StitchGraph]:
    """Return the graph of every stitch op of a Relax module, by default for a GPU with grid barriers."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.FoldConstant(),
        relax.transform.ConvertToDataflow(min_size=1),
        relax.transform.CanonicalizeBindings(),
        StitchOps(config),
        MergeStitchOps(),
    ]
    with target or emulated_target():
        merged = tvm.transform.Sequential(passes)(mod)
    marked = [(g.name_hint, f) for g, f in merged.functions_items() if isinstance(f, tirx.PrimFunc)]
    return [read(f, name) for name, f in marked if f.attrs and STITCH_ATTR in f.attrs]


def stitch_graph(mod: tvm.IRModule, config: StitchConfig | None = None) -> StitchGraph:
    """Return the graph of a module that becomes one stitch op.

    Raises:
        ValueError: if it becomes another number of stitch ops.
    """
    graphs = stitch_graphs(mod, config)
    if len(graphs) != 1:
        raise ValueError(f"the module becomes {len(graphs)} stitch ops: use stitch_graphs")
    return graphs[0]
