# SPDX-License-Identifier: Apache-2.0
"""A step of a Llama-like decoder in llama.cpp: a file of random weights, and calls for one token over a full cache."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from models.decoder_step import Decoder

STEPS = 64
"""Tokens that are computed before the cache is filled again."""
REPACKED = False
"""True if llama.cpp lays integers out anew, for AMX or AVX-512. Its kernels for AMX crash on some machines."""


class LlamaCpp:
    """A step of a decoder by the package ``llama-cpp-python``.

    Args:
        decoder: its sizes and the type of its weights. 8 bits are ``Q8_0``, 4 bits ``Q4_0``.
        folder: a folder for the file of weights, a GGUF file.
        threads: the threads that compute.
    """

    def __init__(self, decoder: Decoder, folder: Path, threads: int):
        import llama_cpp

        self.api, self.decoder = llama_cpp, decoder
        path = folder / "decoder.gguf"
        _write(decoder, path)
        silent = llama_cpp.llama_log_callback(lambda *_: None)
        self.silent = silent
        llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.use_extra_bufts = REPACKED
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
        if not self.model:
            raise RuntimeError("llama.cpp does not load the file of weights")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = decoder.cache + STEPS
        context.n_batch = context.n_ubatch = 256
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.done = STEPS

    def step(self) -> None:
        """Compute one token. The cache is filled with random words first, if it has no room left."""
        if self.done == STEPS:
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
            words = np.arange(self.decoder.cache - 1) * 7919 % self.decoder.words
            for first in range(0, len(words), 256):
                self._decode(words[first : first + 256])
            self.done = 0
        self._decode(np.array([17]))
        self.done += 1

    def _decode(self, words: np.ndarray) -> None:
        tokens = (self.api.llama_token * len(words))(*map(int, words))
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(words))):
            raise RuntimeError("llama.cpp does not compute the step")


def _write(decoder: Decoder, path: Path) -> None:
    import gguf

    d = decoder
    kinds = {8: gguf.GGMLQuantizationType.Q8_0, 4: gguf.GGMLQuantizationType.Q4_0}
    half = gguf.GGMLQuantizationType.BF16 if d.dtype == "bfloat16" else gguf.GGMLQuantizationType.F32
    kind = kinds.get(d.bits, half)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(d.layers)
    writer.add_context_length(d.cache + STEPS)
    writer.add_embedding_length(d.hidden)
    writer.add_feed_forward_length(d.inner)
    writer.add_head_count(d.heads)
    writer.add_head_count_kv(d.key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(d.size)
    writer.add_vocab_size(d.words)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)
    for name, shape in _tensors(d):
        values = random.standard_normal(shape, dtype=np.float32) * (
            shape[-1] ** -0.5 if len(shape) == 2 else 1.0
        )
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(d: Decoder) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (d.words, d.hidden)
    keys = d.key_heads * d.size
    for i in range(d.layers):
        shapes: dict[str, Any] = {
            "attn_norm": (d.hidden,),
            "attn_q": (d.hidden, d.hidden),
            "attn_k": (keys, d.hidden),
            "attn_v": (keys, d.hidden),
            "attn_output": (d.hidden, d.hidden),
            "ffn_norm": (d.hidden,),
            "ffn_gate": (d.inner, d.hidden),
            "ffn_up": (d.inner, d.hidden),
            "ffn_down": (d.hidden, d.inner),
        }
        yield from ((f"blk.{i}.{name}.weight", shape) for name, shape in shapes.items())
    yield "output_norm.weight", (d.hidden,)
    yield "output.weight", (d.words, d.hidden)
