# SPDX-License-Identifier: Apache-2.0
"""The models by name."""

from __future__ import annotations

from collections.abc import Callable

from . import graphs, language, llama, recurrent, vision
from .spec import Made

MODELS: dict[str, Callable[[], Made]] = {
    build.__name__: build
    for build in (
        language.bert,
        language.bert_dynamic,
        language.roberta,
        language.gpt2,
        language.t5_encoder,
        llama.llama_prefill,
        llama.llama_decode,
        vision.vit,
        vision.swin,
        vision.mixer,
        vision.resnet,
        vision.mobilenet,
        vision.convnext,
        vision.convnext_dynamic,
        vision.unet_block,
        vision.style_transfer,
        recurrent.crnn,
        recurrent.dien,
        recurrent.asr_encoder,
        recurrent.asr_encoder_dynamic,
        recurrent.asr_decoder,
        graphs.onnx_bert,
        graphs.onnx_image_network,
    )
}
