# SPDX-License-Identifier: Apache-2.0
"""ONNX's own node test cases, all of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from stitch_testing.onnx_cases import collect_cases

# Operators unknown to TVM's importer that ONNX defines as functions of others.
_DEFINED = [("", "SoftmaxCrossEntropyLoss"), ("", "NegativeLogLikelihoodLoss")]
# Inputs that importers take as constants only, by position: sizes, axes and counts. Models have them as constants.
_CONSTANT_INPUTS = {
    **{f"Reduce{kind}": (1,) for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()},
    **dict.fromkeys(
        "Squeeze Unsqueeze Reshape Expand Tile TopK CumSum CumProd Trilu SplitToSequence".split(), (1,)
    ),
    **dict.fromkeys("Split AffineGrid CenterCropPad SequenceAt SequenceErase Upsample".split(), (1,)),
    **dict.fromkeys(("Dropout", "OneHot", "Col2Im", "DFT"), (1, 2)),
    **dict.fromkeys("ConstantOfShape BlackmanWindow HammingWindow HannWindow".split(), (0,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Range": (0, 1, 2),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "STFT": (1, 3),
    "SequenceInsert": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
}


@cache
def node_cases() -> dict[str, Any]:
    """Return the cases by name, in a fixed order and with the same data in every process."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        collected = collect_cases()
    finally:
        np.random.set_state(state)
    return {case.name: case for case in sorted(collected, key=lambda case: case.name)}


_FAMILIES = (
    "attention cast flexattention gridsample nllloss sce logsoftmax softmax hardmax layer_normalization"
    " rms_normalization group_normalization instancenorm gelu mvn quantizelinear dequantizelinear dynamicquantizelinear"
    " reduce resize sequence string"
).split()


def family(name: str) -> str:
    """Return the row of the table that a case belongs to."""
    return next((each for each in _FAMILIES if name.startswith(f"test_{each}")), "other")


def simplify(model: onnx.ModelProto, inputs: dict[str, Any]) -> onnx.ModelProto:
    """Return the same model in terms that TVM's importer takes: losses by their ONNX definitions, shapes folded."""
    if any((node.domain, node.op_type) in _DEFINED for node in model.graph.node):
        model = onnx.inliner.inline_selected_functions(model, _DEFINED, inline_schema_functions=True)
    return fold_shapes(model, inputs)


def fold_shapes(model: onnx.ModelProto, inputs: dict[str, Any]) -> onnx.ModelProto:
    """Return the model with all that its input shapes and constants determine computed beforehand.

    TVM's importer refuses some arithmetic on shapes, and reductions whose axes are an input. A case's shapes
    are fixed, so what depends on shapes alone becomes an initializer, and so do inputs that are sizes or axes.
    """
    graph = model.graph
    constant: set[str] = {tensor.name for tensor in graph.initializer} | {""}
    given = {value.name for value in graph.input}
    sizes = {
        node.input[i]
        for node in graph.node
        for i in _CONSTANT_INPUTS.get(node.op_type, ())
        if i < len(node.input)
    } & given
    constant |= sizes
    foldable: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type in ("Shape", "Size") or all(name in constant for name in node.input):
            foldable.append(node)
            constant |= set(node.output)
    folded = {id(node) for node in foldable}
    kept = [node for node in graph.node if id(node) not in folded]
    results = [value.name for value in graph.output]
    wanted = {name for node in kept for name in node.input} | set(results)
    names = [name for node in foldable for name in node.output if name and name in wanted]
    values = _evaluate(model, names, inputs)
    values |= {name: np.asarray(inputs[name]) for name in sorted(sizes)}
    # A result that is folded still needs a node to come from.
    for name in results:
        if name in values:
            kept.append(helper.make_node("Identity", [f"{name}_folded"], [name]))
            values[f"{name}_folded"] = values.pop(name)
    new = onnx.ModelProto()
    new.CopyFrom(model)
    for field in ("node", "initializer", "input"):
        new.graph.ClearField(field)
    new.graph.node.extend(kept)
    new.graph.initializer.extend(graph.initializer)
    new.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    new.graph.input.extend(value for value in graph.input if value.name not in values)
    return new


def _evaluate(model: onnx.ModelProto, names: list[str], inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the values of intermediate results, from the nodes that they need."""
    if not names:
        return {}
    needed, nodes = set(names), []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    graph = helper.make_graph(
        nodes[::-1],
        "constants",
        [value for value in model.graph.input if value.name in needed],
        [onnx.ValueInfoProto(name=name) for name in names],
        [tensor for tensor in model.graph.initializer if tensor.name in needed],
    )
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    outputs = ReferenceEvaluator(part).run(names, {k: v for k, v in inputs.items() if k in needed})
    return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}
