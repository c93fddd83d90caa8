#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate tokens with a causal model of transformers, compiled by tvm_stitch, and compare it with PyTorch.

    python examples/generate.py --model llama --check               # a small model with random weights
    python examples/generate.py --model gemma3_text --target cuda --dtype bfloat16 --layers 16 --hidden 2048
    python examples/generate.py --pretrained path/to/model --prompt "Once upon a time" --temperature 0.8 --top-k 40

The model is transformers' own, unchanged. Its caches have a static size. One compiled function takes the prompt, which
may have any length, and another takes one token. Weights are in the compiled functions, so a GPU gets them once.
Tokens, positions, scores and caches stay on the device. The best token, or the best ones among which a random token is
drawn, are chosen inside the compiled function.

Exit code: 0, or 1 if ``--check`` finds another token than PyTorch's, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

MODELS = ("llama", "qwen3", "gemma3_text", "phi", "gpt2", "mixtral", "mistral", "gemma2", "olmo2", "smollm3")
"""Model types that have been tried. Others of transformers may run too."""
DTYPES = ("float32", "bfloat16", "float16")
TARGETS = ("native", "llvm", "cuda")

Step = Callable[[Any], tuple[Any, ...]]
"""Takes tokens [1, n], and returns the best next token [1, 1] and the scores [1, 1, words].

If a step has candidates, the scores are those of the best words, and the words [1, 1, candidates] follow.
"""


def sample(
    scores: torch.Tensor, words: torch.Tensor | None, temperature: float, generator: torch.Generator
) -> int:
    """Return a random token.

    Args:
        scores: scores of the candidates [n].
        words: the candidates, int64 [n], or None if they are all words.
        temperature: scores are divided by it before the softmax.
        generator: random numbers.
    """
    shares = torch.softmax(scores.double() / temperature, -1)
    drawn = int(torch.multinomial(shares, 1, generator=generator))
    return drawn if words is None else int(words[drawn])


def generate(step: Step, prompt: Any, tokens: int, chosen: Callable[..., Any]) -> list[Any]:
    """Return new tokens, each as the device has it.

    Args:
        step: called with the prompt first, then with each new token.
        prompt: tokens [1, n].
        tokens: the number of new tokens.
        chosen: takes the results of a step, and returns the next token [1, 1].
    """
    found, ids = [], prompt
    for _ in range(tokens):
        ids = chosen(*step(ids))
        found.append(ids)
    return found


class Contender:
    """A way to run the model: a name, and functions to begin anew, to step, and to move tensors in and out.

    Args:
        name: its name in the table.
        reset: forgets all tokens.
        step: takes tokens.
        moved: moves a tensor of PyTorch to the device.
        back: returns a tensor of the device as a tensor of PyTorch.
        wait: waits for the device.
    """

    def __init__(
        self,
        name: str,
        reset: Callable[[], None],
        step: Step,
        moved: Callable[[torch.Tensor], Any],
        back: Callable[[Any], torch.Tensor],
        wait: Callable[[], None],
    ):
        self.name, self.reset, self.step = name, reset, step
        self.moved, self.back, self.wait = moved, back, wait

    def run(self, prompt: torch.Tensor, options: argparse.Namespace) -> tuple[list[int], float, float]:
        """Return the new tokens, and the seconds of the prompt and of all further tokens."""
        generator = torch.Generator().manual_seed(options.seed)

        def chosen(best: Any, scores: Any, words: Any = None) -> Any:
            if not options.temperature:
                return best
            row, among = (each if each is None else self.back(each).reshape(-1) for each in (scores, words))
            return self.moved(torch.tensor([[sample(row, among, options.temperature, generator)]]))

        self.reset()
        ids = self.moved(prompt)
        self.wait()
        start = time.perf_counter()
        found = generate(self.step, ids, 1, chosen)
        self.wait()
        first = time.perf_counter()
        found += generate(self.step, found[0], options.tokens - 1, chosen)
        self.wait()
        end = time.perf_counter()
        return [int(self.back(each)) for each in found], first - start, end - first


def candidates(options: argparse.Namespace) -> int:
    """Return the number of best words among which a random token is drawn, or 0 for all words."""
    drawn = options.temperature and (options.pretrained or options.top_k < options.words)
    return options.top_k if drawn else 0


def stitched(model: Any, options: argparse.Namespace) -> Contender:
    """Return the model compiled by tvm_stitch."""
    from cached_step import CompiledSteps

    count = candidates(options)
    steps = CompiledSteps(model, options.length, options.target, options.cuda_graph, count)

    def back(tensor: Any) -> torch.Tensor:
        return torch.from_dlpack(tensor.copyto(_host()))

    return Contender("tvm_stitch", steps.reset, steps, steps.moved, back, steps.device.sync)


def _host() -> Any:
    import tvm

    return tvm.cpu()


def in_torch(model: Any, options: argparse.Namespace, compiled: bool) -> Contender:
    """Return the model in PyTorch, with transformers' own cache of a static size."""
    from cached_step import cache_argument
    from transformers import StaticCache

    device = "cuda" if options.target == "cuda" else "cpu"
    model = model.to(device)
    forward = torch.compile(model.forward) if compiled else model.forward
    caches: list[Any] = []
    name = cache_argument(model)

    def reset() -> None:
        caches[:] = [StaticCache(config=model.config, max_cache_len=options.length)]

    def step(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        call = forward if ids.shape[1] == 1 else model.forward
        with torch.no_grad():
            scores = call(input_ids=ids, **{name: caches[0]}, use_cache=True, logits_to_keep=1).logits
        best, count = scores[:, -1].argmax(-1, keepdim=True), candidates(options)
        return (best, *scores.topk(count)) if count else (best, scores)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    title = "torch.compile" if compiled else "PyTorch"
    return Contender(title, reset, step, lambda x: x.to(device), lambda x: x.cpu(), wait)


def loaded(options: argparse.Namespace) -> tuple[Any, torch.Tensor, Any]:
    """Return the model, the prompt's tokens [1, n], and a tokenizer or None."""
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

    dtype = getattr(torch, options.dtype)
    experts = {
        "experts_implementation": "batched_mm"
    }  # by default experts call a function that only PyTorch has
    tokenizer = None
    if options.pretrained:
        config = AutoConfig.from_pretrained(options.pretrained, **experts)
        model = AutoModelForCausalLM.from_pretrained(options.pretrained, config=config, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(options.pretrained)
        prompt = tokenizer(options.prompt, return_tensors="pt").input_ids
    else:
        torch.manual_seed(options.seed)
        config = CONFIG_MAPPING[options.model](**sizes(options), **experts)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        prompt = torch.randint(0, options.words, (1, options.prompt_tokens))
    return model.eval().requires_grad_(False), prompt, tokenizer


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a configuration of transformers."""
    found = {
        "hidden_size": options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.key_heads,
        "head_dim": options.hidden // options.heads,
        "intermediate_size": options.inner or 4 * options.hidden,
        "vocab_size": options.words,
        "max_position_embeddings": max(options.length, 2048),
        "initializer_range": options.hidden**-0.5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,  # else random weights repeat one token
    }
    if options.model in ("gemma2", "gemma3_text", "mistral"):
        found["sliding_window"] = min(options.length // 2, 512)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="llama", help=f"a model type of transformers, such as {', '.join(MODELS)}")
    add("--layers", type=int, default=4, help="layers (default: %(default)s)")
    add("--hidden", type=int, default=256, help="width of the model (default: %(default)s)")
    add("--heads", type=int, default=8, help="heads of queries (default: %(default)s)")
    add("--key-heads", type=int, default=2, help="heads of keys (default: %(default)s)")
    add("--inner", type=int, default=0, help="width of the feed-forward network (default: 4 times hidden)")
    add("--words", type=int, default=1000, help="words of the vocabulary (default: %(default)s)")
    add("--pretrained", metavar="NAME_OR_PATH", help="a model with its weights and tokenizer")
    add("--prompt", default="Once upon a time", help="the text that a pretrained model continues")
    add("--prompt-tokens", type=int, default=16, help="random tokens of other prompts (default: %(default)s)")
    add("--tokens", type=int, default=64, help="new tokens (default: %(default)s)")
    add("--length", type=int, default=128, help="tokens that the caches hold (default: %(default)s)")
    add(
        "--dtype", choices=DTYPES, default="float32", help="type of weights and caches (default: %(default)s)"
    )
    add(
        "--target",
        choices=TARGETS,
        default="native",
        help="this CPU, any CPU of its kind, or a GPU (default: %(default)s)",
    )
    add("--cuda-graph", action="store_true", help="launch the kernels of a token as a CUDA graph")
    add("--temperature", type=float, default=0.0, help="0 takes the best token (default)")
    add("--top-k", type=int, default=0, help="candidates of a random token (default: all words)")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of weights, prompts and random tokens (default: %(default)s)",
    )
    add(
        "--repeats",
        type=int,
        default=3,
        help="timed runs, of which medians are printed (default: %(default)s)",
    )
    add("--compile", action="store_true", help="run torch.compile too")
    add("--check", action="store_true", help="fail unless the tokens are PyTorch's")
    return parser


def _problem(options: argparse.Namespace, prompt: int) -> str:
    """Return the reason why options are refused, or nothing."""
    if options.tokens < 2 or options.repeats < 1 or prompt < 1:
        return "it needs one token of a prompt, two new tokens and one repeat at least"
    if options.hidden % options.heads or options.heads % options.key_heads:
        return "--hidden must be a multiple of --heads, and --heads one of --key-heads"
    if options.temperature < 0 or options.top_k < 0:
        return "--temperature and --top-k must not be negative"
    if prompt + options.tokens > options.length:
        return (
            f"caches of {options.length} tokens are too short for {prompt} tokens and {options.tokens} new ones:"
            f" use --length {prompt + options.tokens}"
        )
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if problem := _problem(options, 2 if options.pretrained else options.prompt_tokens):
        parser.error(problem)
    if importlib.util.find_spec("transformers") is None:
        parser.error("this example needs transformers: pip install transformers")
    if options.cuda_graph and options.target != "cuda":
        parser.error("--cuda-graph needs --target cuda")
    if options.target == "cuda" and not torch.cuda.is_available():
        parser.error("--target cuda needs a GPU and a PyTorch with CUDA: leave it out to run on the CPU")
    model, prompt, tokenizer = loaded(options)
    if problem := _problem(options, prompt.shape[1]):
        parser.error(problem)
    return compare(model, prompt, tokenizer, options)


def compare(model: Any, prompt: torch.Tensor, tokenizer: Any, options: argparse.Namespace) -> int:
    """Run all contenders in turns, print a table and the text, and return the exit code."""
    parameters = sum(each.numel() for each in model.parameters())
    print(
        f"{model.config.model_type}, {parameters / 1e6:.1f} M parameters, {options.dtype}, {options.target}"
    )
    print(f"{prompt.shape[1]} tokens of prompt, {options.tokens} new ones, caches of {options.length}")
    start = time.perf_counter()
    contenders = [stitched(model, options)]
    print(f"export and compilation: {time.perf_counter() - start:.0f} s")
    contenders += [in_torch(model, options, compiled) for compiled in (False, True)[: 1 + options.compile]]
    found = {each.name: each.run(prompt, options)[0] for each in contenders}  # the first run is not timed
    spent: dict[str, list[tuple[float, float]]] = {each.name: [] for each in contenders}
    for _ in range(options.repeats):
        for each in contenders:
            spent[each.name].append(each.run(prompt, options)[1:])
    print(f"{'':15}{'prompt, ms':>12}{'tokens a second':>18}")
    for name, times in spent.items():
        first, rest = (statistics.median(column) for column in zip(*times))
        print(f"{name:15}{first * 1e3:12.1f}{(options.tokens - 1) / rest:18.0f}")
    own, wanted = found["tvm_stitch"], found["PyTorch"]
    print(tokenizer.decode(own) if tokenizer else " ".join(map(str, own)))
    same = next((i for i, pair in enumerate(zip(own, wanted)) if pair[0] != pair[1]), len(own))
    print(f"the first {same} of {len(own)} tokens are PyTorch's")
    return int(options.check and same < len(own))


if __name__ == "__main__":
    sys.exit(main())
