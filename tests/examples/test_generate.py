# SPDX-License-Identifier: Apache-2.0
"""The example that generates tokens: its choices, its refusals, and its tokens, which are PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cached_step  # noqa: E402
import generate  # noqa: E402
from cached_step import CompiledSteps  # noqa: E402
from generate import Contender, sample  # noqa: E402

from tests.examples.tiny import WORDS, Cache, Tiny  # noqa: E402


def _drawn(scores: Any, temperature: float, top_k: int, times: int = 400) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    candidates = scores.topk(top_k) if top_k else (scores, None)
    return [sample(*candidates, temperature, generator) for _ in range(times)]


def test_random_tokens_follow_the_scores() -> None:
    scores = torch.tensor([0.0, 2.0, -1.0, 1.0])
    assert _drawn(scores, 1.0, 1, 20) == [1] * 20
    assert set(_drawn(scores, 5.0, 2)) == {1, 3} and set(_drawn(scores, 5.0, 0)) == {0, 1, 2, 3}
    for temperature in (0.5, 2.0):
        drawn = _drawn(scores, temperature, 0, 4000)
        counts = torch.bincount(torch.tensor(drawn), minlength=4) / len(drawn)
        torch.testing.assert_close(counts, torch.softmax(scores / temperature, 0), rtol=0, atol=0.03)
    assert _drawn(scores, 1.0, 0) == _drawn(scores, 1.0, 0)


def _counting(name: str, wrong_at: int = -1) -> Contender:
    """Return a model whose best token is one more than the last, and whose scores are best for the one behind it."""
    seen: list[int] = []

    def step(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(ids.shape[1])
        best = ids[:, -1:] + (2 if len(seen) - 1 == wrong_at else 1)
        return best, torch.nn.functional.one_hot(best + 1, 100).double()[None] * 50

    return Contender(name, seen.clear, step, lambda x: x, lambda x: x, lambda: None)


def _options(*arguments: str) -> Any:
    return generate._parser().parse_args(arguments)


def test_each_token_is_the_next_input() -> None:
    prompt = torch.tensor([[3, 7]])
    found, first, rest = _counting("a").run(prompt, _options("--tokens", "4"))
    assert found == [8, 9, 10, 11] and first >= 0 and rest >= 0
    assert _counting("a").run(prompt, _options("--tokens", "3", "--temperature", "1"))[0] == [9, 11, 13]


@pytest.mark.parametrize(("wrong_at", "check", "code"), [(-1, True, 0), (2, True, 1), (2, False, 0)])
def test_other_tokens_than_those_of_pytorch_fail_a_check(
    wrong_at: int, check: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "stitched", lambda *_: _counting("tvm_stitch", wrong_at))
    monkeypatch.setattr(generate, "in_torch", lambda model, options, compiled: _counting("PyTorch"))
    options = _options("--tokens", "5", "--repeats", "1", *["--check"][: int(check)])
    assert generate.compare(Tiny(), torch.tensor([[1, 2]]), None, options) == code
    shown = capsys.readouterr().out
    assert f"the first {5 if wrong_at < 0 else wrong_at} of 5 tokens are PyTorch's" in shown
    assert "tokens a second" in shown


REFUSED = {
    ("--tokens", "1"): "two new tokens",
    ("--prompt-tokens", "0"): "one token of a prompt",
    ("--repeats", "0"): "one repeat",
    ("--heads", "7"): "multiple of --heads",
    ("--key-heads", "3"): "one of --key-heads",
    ("--temperature", "-1"): "not be negative",
    ("--top-k", "-1"): "not be negative",
    ("--prompt-tokens", "100"): "use --length 164",
    ("--target", "cuda"): "needs a GPU",
    ("--cuda-graph",): "needs --target cuda",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_wrong_options_are_refused(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        generate.main(arguments)
    assert ended.value.code == 2 and REFUSED[arguments] in capsys.readouterr().err


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        generate.main([])
    assert ended.value.code == 2 and "pip install transformers" in capsys.readouterr().err


def test_compiled_steps_have_the_scores_of_whole_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of any length, and then one token at a time, each with the scores that no cache gives."""
    monkeypatch.setattr(cached_step, "cache_around", Cache)
    model = Tiny().eval().requires_grad_(False)
    steps = CompiledSteps(model, 12, "llvm")
    for prompt in (5, 2, 1):
        steps.reset()
        ids = torch.arange(3, 3 + prompt)[None] * 5 % WORDS
        for new in (ids, *torch.tensor([[[4]], [[11]], [[28]]])):
            best, scores = steps(steps.moved(new))
            ids = ids if new is ids else torch.cat([ids, new], 1)
            wanted = model(ids, logits_to_keep=1).logits
            torch.testing.assert_close(torch.from_dlpack(scores), wanted, rtol=1e-4, atol=1e-5)
            assert best.numpy() == wanted.argmax(-1).numpy()
        assert int(steps.position.numpy()) == ids.shape[1]


@pytest.mark.parametrize("random", [False, True], ids=["best", "random"])
def test_tokens_of_transformers_are_equal(random: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from models.spec import _import_torchvision

    _import_torchvision()
    pytest.importorskip("transformers")
    small = ["--layers", "1", "--hidden", "32", "--heads", "4", "--words", "50", "--length", "32"]
    more = ["--temperature", "0.7", "--top-k", "9"] if random else []
    assert generate.main([*small, *more, "--tokens", "12", "--repeats", "1", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "the first 12 of 12 tokens are PyTorch's" in shown and "llama" in shown
