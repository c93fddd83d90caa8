# SPDX-License-Identifier: Apache-2.0
"""Corruptions of ONNX files, drawn by number. Each takes a copy of a model that it may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from stitch_testing.onnx_cases import collect_cases
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert

NODE_CASES = (
    "test_softmax_axis_2 test_layer_normalization_2d_axis1 test_concat_2d_axis_1 test_split_equal_parts_2d"
    " test_reduce_sum_keepdims_example test_gather_1 test_slice test_conv_with_strides_padding test_where_example"
    " test_gemm_default_vector_bias test_clip_example test_batchnorm_epsilon test_transpose_all_permutations_1"
    " test_constant_pad test_reshape_reordered_all_dims test_if test_loop11"
).split()

Corrupt = Callable[[onnx.ModelProto, np.random.Generator], onnx.ModelProto | bytes]


def valid_models() -> list[onnx.ModelProto]:
    """Return small models that compile: ONNX's own node cases, a chain with constants, and a BERT encoder."""
    cases = {case.name: case.model for case in collect_cases()}
    weight = numpy_helper.from_array(np.eye(4, dtype="float32"), "w")
    value = helper.make_tensor_value_info
    chain = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Concat", ["h", "x"], ["c"], axis=1),
            helper.make_node("Softmax", ["c"], ["s"], axis=-1),
            helper.make_node("ReduceMean", ["s"], ["y"], axes=[1], keepdims=0),
        ],
        "chain",
        [value("x", TensorProto.FLOAT, [3, 4])],
        [value("y", TensorProto.FLOAT, [3])],
        [weight],
    )
    chained = helper.make_model(chain, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bert = build_bert(BertConfig(layers=1, hidden=16, heads=2, ffn=32, vocabulary=24, sequence=8, batch=1))
    return [*(cases[name] for name in NODE_CASES if name in cases), chained, chained, bert]


def _node(model: onnx.ModelProto, rng: np.random.Generator) -> Any:
    return model.graph.node[rng.integers(len(model.graph.node))]


def _one(values: Any, rng: np.random.Generator) -> int:
    return int(rng.integers(max(1, len(values))))


def flipped_bits(model: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(rng.integers(1, 6)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def truncated(model: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    data = model.SerializeToString()
    return data[: rng.integers(len(data))]


def emptied_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        node.input[_one(node.input, rng)] = ""
    return model


def emptied_output(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    node.output[_one(node.output, rng)] = ""
    return model


def renamed_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        node.input[_one(node.input, rng)] = str(rng.choice(["nowhere", "x", "\u00e9\n", node.output[0]]))
    return model


def removed_input(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if node.input:
        del node.input[_one(node.input, rng)]
    return model


def swapped_inputs(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    names = list(node.input)
    rng.shuffle(names)
    del node.input[:]
    node.input.extend(names)
    return model


def more_inputs(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    node.input.extend([node.input[0] if node.input else ""] * int(rng.integers(1, 5)))
    return model


def removed_node(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    del model.graph.node[_one(model.graph.node, rng)]
    return model


def shuffled_nodes(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def cycle(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    first, last = model.graph.node[0], model.graph.node[-1]
    if first.input:
        first.input[_one(first.input, rng)] = last.output[0]
    return model


def duplicated_output(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    node = _node(model, rng)
    if rng.random() < 0.5:
        node.output.append(node.output[0])
    else:
        model.graph.output.append(model.graph.output[0])
    return model


def other_operator(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    names = [
        "Add",
        "Concat",
        "Conv",
        "Gather",
        "Identity",
        "If",
        "Loop",
        "MatMul",
        "ReduceMax",
        "Reshape",
        "Slice",
    ]
    names += ["Softmax", "Split", "Unheard", "", "Resize", "TopK", "LSTM", "Transpose", "Unsqueeze", "Expand"]
    _node(model, rng).op_type = str(rng.choice(names))
    return model


def other_domain(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    _node(model, rng).domain = str(rng.choice(["odd", "com.microsoft", "ai.onnx.ml", "ai.onnx"]))
    return model


def other_opset(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    model.opset_import[0].version = int(rng.choice([0, 1, 7, 9, 11, 13, 99, -1]))
    return model


def odd_attribute(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [n for n in model.graph.node if n.attribute] or list(model.graph.node)
    node = nodes[_one(nodes, rng)]
    values = [
        -1,
        -7,
        0,
        1 << 40,
        -(1 << 62),
        [],
        [-1, -1],
        [0, 0, 0, 0, 0, 0, 0],
        1e30,
        float("nan"),
        float("inf"),
        "odd",
    ]
    value = values[rng.integers(len(values))]
    name = node.attribute[_one(node.attribute, rng)].name if node.attribute else "axis"
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value == []:
        node.attribute.append(AttributeProto(name=name, type=AttributeProto.INTS))
    else:
        node.attribute.append(helper.make_attribute(name, value))
    return model


def attribute_of_another_type(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [n for n in model.graph.node if n.attribute]
    if nodes:
        node = nodes[_one(nodes, rng)]
        node.attribute[_one(node.attribute, rng)].type = int(rng.integers(0, 15))
    return model


def odd_shape(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    dims = values[_one(values, rng)].type.tensor_type.shape.dim
    size = int(rng.choice([-1, 0, 1, 3, 1 << 31, 1 << 62, (1 << 63) - 1]))
    if dims and rng.random() < 0.8:
        dims[_one(dims, rng)].dim_value = size
    else:
        dims.add().dim_value = size
    return model


def other_dtype(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    values[_one(values, rng)].type.tensor_type.elem_type = int(rng.integers(0, 30))
    return model


def no_type(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output]
    value = values[_one(values, rng)]
    if rng.random() < 0.5:
        value.ClearField("type")
    else:
        value.type.tensor_type.ClearField("shape")
    return model


def unnamed_value(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = [*model.graph.input, *model.graph.output, *model.graph.initializer]
    values[_one(values, rng)].name = str(rng.choice(["", "other", values[0].name]))
    return model


def missing_initializer(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    values = model.graph.initializer or model.graph.input
    if values:
        del values[_one(values, rng)]
    return model


def odd_initializer(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    held = [
        *model.graph.initializer,
        *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t")),
    ]
    if not held:
        return odd_shape(model, rng)
    tensor = held[_one(held, rng)]
    kind = rng.integers(5)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: rng.integers(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.dims.append(int(rng.choice([-1, 0, 2, 1 << 40])))
    elif kind == 2:
        tensor.data_type = int(rng.integers(0, 30))
    elif kind == 3 and tensor.raw_data:
        tensor.raw_data = rng.bytes(len(tensor.raw_data))
    else:
        tensor.float_data.extend([float("nan")])
    return model


def data_elsewhere(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    if not model.graph.initializer:
        return missing_initializer(model, rng)
    tensor = model.graph.initializer[_one(model.graph.initializer, rng)]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key = "location"
    entry.value = str(
        rng.choice(["../../../../etc/passwd", "/etc/passwd", "missing.bin", "", "current.onnx"])
    )
    return model


def nothing(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    kind = rng.integers(3)
    if kind == 0:
        del model.graph.node[:]
    elif kind == 1:
        del model.graph.output[:]
    else:
        model.ClearField("graph")
    return model


CORRUPTIONS: tuple[Corrupt, ...] = (
    flipped_bits, flipped_bits, truncated, emptied_input, emptied_input, emptied_output, renamed_input, removed_input,
    swapped_inputs, more_inputs, removed_node, shuffled_nodes, cycle, duplicated_output, other_operator, other_domain,
    other_opset, odd_attribute, odd_attribute, attribute_of_another_type, odd_shape, other_dtype, no_type,
    unnamed_value, missing_initializer, odd_initializer, odd_initializer, data_elsewhere, nothing,
)  # fmt: skip


def corrupted(models: list[onnx.ModelProto], seed: int, number: int) -> tuple[str, bytes]:
    """Return the name of a corruption, and the bytes of a file that has it, sometimes with a second one."""
    rng = np.random.default_rng([seed, number])
    model = onnx.ModelProto()
    model.CopyFrom(models[rng.integers(len(models))])
    corrupt = CORRUPTIONS[rng.integers(len(CORRUPTIONS))]
    if rng.random() < 0.2:
        more = CORRUPTIONS[rng.integers(len(CORRUPTIONS))](model, rng)
        if isinstance(more, onnx.ModelProto):
            model = more
    try:
        changed = corrupt(model, rng)
    except (ValueError, TypeError, IndexError):  # a second corruption of something that the first has emptied
        changed = model
    return corrupt.__name__, changed if isinstance(changed, bytes) else changed.SerializeToString()
