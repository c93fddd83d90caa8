# SPDX-License-Identifier: Apache-2.0
"""Models that ONNX Runtime's own tools rewrote: fused transformers, and a decoder with weights of four bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .language import configured
from .spec import PAIR, Architecture, Cached, OnnxModel, Tensors, ids, image

_OPSET = 18


def exported(module: torch.nn.Module, given: tuple[Any, ...]) -> Any:
    """Return the ONNX file of a module, by PyTorch's exporter."""
    module = module.eval().requires_grad_(False)
    program = torch.export.export(module, given)
    onnx_program = torch.onnx.export(program, opset_version=_OPSET, verbose=False)
    assert onnx_program is not None
    return onnx_program.model_proto


def _fused(
    make: Callable[[], Any], inputs: Callable[[int], tuple[Any, ...]], kind: str, wanted: tuple[str, ...] = ()
) -> Callable[[], OnnxModel]:
    """Return a builder of a model with ONNX Runtime's fusions for a kind of transformer of 4 heads and width 64."""

    def build() -> OnnxModel:
        from onnxruntime.transformers import optimizer

        proto = exported(make(), inputs(2))
        fused = optimizer.optimize_model(proto, model_type=kind, num_heads=4, hidden_size=64, opt_level=0)
        return OnnxModel(fused.model, wanted)

    return build


def _bert() -> Any:
    from transformers import BertModel

    config = configured("bert", {"attn_implementation": "eager"})
    return Tensors(BertModel(config), ("input_ids", "attention_mask"))


def _whisper_encoder() -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = configured("whisper", {**PAIR, "max_source_positions": 50, "attn_implementation": "eager"})
    return Tensors(WhisperEncoder(config))


def _whisper_decoder() -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperDecoder

    config = configured(
        "whisper", {**PAIR, "max_target_positions": 64, "attn_implementation": "eager", "use_cache": False}
    )
    return Tensors(WhisperDecoder(config), ("input_ids", "encoder_hidden_states"))


def _clip_text() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = CLIPTextConfig(
        vocab_size=128, max_position_embeddings=32, eos_token_id=2, attn_implementation="eager", **small
    )
    return Tensors(CLIPTextModel(config))


def _clip_vision() -> Any:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = CLIPVisionConfig(image_size=32, patch_size=8, attn_implementation="eager", **small)
    return Tensors(CLIPVisionModel(config))


def _llama() -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(configured("llama", {"num_key_value_heads": 2, "head_dim": 16}))


def _four_bits(step: bool, symmetric: bool) -> Callable[[], OnnxModel]:
    def build() -> OnnxModel:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        module = Cached(_llama(), 2) if step else Tensors(_llama(), ("input_ids",), use_cache=False)
        proto = exported(module, _step_inputs(9) if step else (ids(2, 10),))
        quantizer = MatMulNBitsQuantizer(proto, bits=4, block_size=32, is_symmetric=symmetric)
        quantizer.process()
        return OnnxModel(quantizer.model.model, ("MatMulNBits",))

    return build


def _step_inputs(n: int) -> tuple[Any, ...]:
    return (ids(2, 1), *(torch.randn(2, 2, n, 16) for _ in range(4)))


def _bert_inputs(n: int) -> tuple[Any, ...]:
    return ids(n, 12), torch.ones(n, 12, dtype=torch.int64)


def _decoder_inputs(n: int) -> tuple[Any, ...]:
    return ids(n, 6), torch.randn(n, 50, 64)


def _entry(name: str, build: Callable[[], Any], inputs: Callable[[int], tuple[Any, ...]]) -> Architecture:
    return Architecture(f"ort-{name}", "onnxruntime", "transformers", build, inputs, paths=("onnx",))


def _frames(n: int) -> tuple[Any, ...]:
    return (torch.randn(n, 80, 100),)


def _text(n: int) -> tuple[Any, ...]:
    return (ids(n, 8),)


def _image(n: int) -> tuple[Any, ...]:
    return (image(n, 32),)


ARCHITECTURES = (
    _entry("bert", _fused(_bert, _bert_inputs, "bert"), _bert_inputs),
    _entry("whisper-encoder", _fused(_whisper_encoder, _frames, "bart"), _frames),
    _entry("whisper-decoder", _fused(_whisper_decoder, _decoder_inputs, "bart"), _decoder_inputs),
    _entry("clip-text", _fused(_clip_text, _text, "clip"), _text),
    _entry("clip-vision", _fused(_clip_vision, _image, "vit"), _image),
    _entry("llama-int4", _four_bits(step=False, symmetric=True), lambda n: (ids(2, 10),)),
    _entry("llama-int4-step", _four_bits(step=True, symmetric=False), lambda n: _step_inputs(9)),
)
