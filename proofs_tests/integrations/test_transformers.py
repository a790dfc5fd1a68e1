"""`model.generate` with our samplers: laws, heads, processors, caches, and what users expect."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList, StopStringCriteria
from transformers.generation.logits_process import LogitsProcessor

from fsresearch import METHODS, demo, sample_logits
from fsresearch.integrations.heads import head_of
from fsresearch.integrations.transformers import sample, stochastic_beam_search
from fsresearch.truncation import kept
from fsresearch.verify.statistics import goodness_of_fit
from proofs_tests.statistics_policy import FIXED_P, false_fail

VOCAB, EOS, PAD = 40, 39, 38
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 37,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "initializer_range": 0.6,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma2": {"final_logit_softcapping": 3.0},
    "Cohere": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0},
    "Phi": {},
    "Mamba": {"state_size": 4},
}
PROMPTS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@cache
def model_of(family: str) -> Any:
    """Return a small random model, the same each time."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family])
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    head = model.get_output_embeddings()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return model


def draw(prompts: Tensor = PROMPTS, family: str = "Llama", **options: Any) -> Any:
    given = {"seed": 1, "max_new_tokens": 6, "custom_generate": sample, **options}
    return model_of(family).generate(prompts, **given)


def search(prompts: Tensor = PROMPTS, family: str = "Llama", **options: Any) -> Any:
    given = {"num_beams": 5, "custom_generate": stochastic_beam_search, **options}
    given.setdefault("num_return_sequences", given["num_beams"])
    return draw(prompts, family, **given)


def processed(family: str, ids: Tensor) -> Tensor:
    """Return the model's own logits after ids [R, t]."""
    with torch.no_grad():
        logits: Tensor = model_of(family)(ids).logits[:, -1].float()
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_models_own_logits(family: str) -> None:
    """Softcap, scale and bias of the head, the cache and the position: all tokens agree."""
    ids, seeds = PROMPTS, torch.tensor([3, 4])
    expected = ids
    for step in range(6):
        token = sample_logits(processed(family, expected), seed=seeds, position=4 + step).token
        expected = torch.cat([expected, token], 1)
        if (token == EOS).any():
            break
    got = draw(family=family, seed=seeds, max_new_tokens=expected.shape[1] - 4)
    assert got.equal(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_described_as_the_family_says(family: str) -> None:
    head = head_of(model_of(family))
    assert head.softcap == (3.0 if family == "Gemma2" else None)
    assert head.logit_scale == (0.25 if family in ("Cohere", "Granite") else None)
    assert (head.bias is not None) == (family == "Phi")


def test_a_head_that_does_something_else_is_refused() -> None:
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.eval()

    def tripled(_: Any, __: Any, output: Any) -> Any:
        output.logits = output.logits * 3
        return output

    model.register_forward_hook(tripled)
    with pytest.raises(ValueError, match=r"^the logits of LlamaForCausalLM are not those of its"):
        model.generate(PROMPTS, custom_generate=sample, max_new_tokens=2)
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(ValueError, match=r"plain torch.nn.Linear, got Sequential$"):
        model.generate(PROMPTS, custom_generate=sample, max_new_tokens=2)
    t5 = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    encoder_decoder: Any = transformers.T5ForConditionalGeneration(t5)
    with pytest.raises(ValueError, match=r"encoder-decoder T5ForConditionalGeneration$"):
        encoder_decoder.generate(
            PROMPTS.clamp(max=8),
            custom_generate=sample,
            max_new_tokens=2,
            decoder_start_token_id=0,
        )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_no_cache_give_tokens(method: str) -> None:
    got = draw(method=method)
    assert got.equal(draw(method=method, use_cache=False))
    assert got.shape[0] == 2
    assert got[:, :4].equal(PROMPTS)


def padded(prompts: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", [draw, search])
def test_a_row_does_not_depend_on_its_batch_or_on_padding(how: Any, family: str) -> None:
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12]]
    seeds = torch.tensor([5, 6, 7])
    batch = padded(prompts)
    together = how(None, family, seed=seeds, **batch)
    each = len(together) // 3
    start = batch["input_ids"].shape[1]
    for row, prompt in enumerate(prompts):
        alone = how(torch.tensor([prompt]), family, seed=seeds[row : row + 1])[:, len(prompt) :]
        got = together[row * each : (row + 1) * each, start:]
        assert got[:, : alone.shape[1]].equal(alone)
        assert (got[:, alone.shape[1] :] == PAD).all()


def test_a_continuation_that_is_continued_is_the_one_made_at_once() -> None:
    whole = draw(max_new_tokens=8, eos_token_id=None)
    part = draw(max_new_tokens=3, eos_token_id=None)
    assert draw(part, max_new_tokens=5, eos_token_id=None).equal(whole)
    kept_cache = draw(max_new_tokens=3, eos_token_id=None, return_dict_in_generate=True)
    more = draw(kept_cache.sequences, cache=kept_cache.cache, max_new_tokens=5, eos_token_id=None)
    assert more.equal(whole)


def test_return_sequences_differ_and_seeds_govern() -> None:
    four: dict[str, Any] = {"do_sample": True, "num_return_sequences": 4, "max_new_tokens": 12}
    many = draw(**four)
    assert many.shape[0] == 8
    assert len(many.unique(dim=0)) == 8
    assert many.equal(draw(**four))
    torch.manual_seed(3)
    first, second = draw(seed=None), draw(seed=None)
    torch.manual_seed(3)
    assert draw(seed=None).equal(first)
    assert not first.equal(second)


@false_fail(2 * FIXED_P, seeds_vary=False)
@pytest.mark.parametrize("materialize", [False, True])
def test_do_sample_brings_warpers_and_the_law_is_theirs(materialize: bool) -> None:
    """Null hypothesis: the law is softmax after temperature, top-k and top-p."""
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 12, "top_p": 0.9}
    rows = PROMPTS[:1].expand(4000, -1)
    got = draw(rows, max_new_tokens=1, materialize=materialize, **options)[:, -1]
    logits = processed("Llama", PROMPTS[:1]) / 1.5
    law = logits.masked_fill(~kept(logits, 12, 0.9), -torch.inf).double().softmax(1)[0]
    counts = got.bincount(minlength=VOCAB).numpy()
    assert not counts[law.numpy() == 0].any()
    assert goodness_of_fit(counts, law.numpy()).p_value > FIXED_P


def test_the_default_top_k_is_50() -> None:
    """Beyond 50 tokens do_sample=True draws from the 50 largest alone."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 300, "initializer_range": 0.02})
    model: Any = transformers.LlamaForCausalLM(config)
    model.eval()
    rows, same = PROMPTS[:1].expand(2000, -1), {"custom_generate": sample, "max_new_tokens": 1}
    plain = model.generate(rows, seed=1, **same)[:, -1]
    filtered = model.generate(rows, seed=1, do_sample=True, **same)[:, -1]
    with torch.no_grad():
        best = model(PROMPTS[:1]).logits[0, -1].topk(50).indices
    assert torch.isin(filtered, best).all()
    assert len(plain.unique()) > 200
    inside = torch.isin(plain, best)
    assert filtered[inside].equal(plain[inside])


MANY_ENDS = [EOS, *range(0, 36, 3)]
PROCESSORS: list[dict[str, Any]] = [
    {"suppress_tokens": [3, 4, 5]},
    {"begin_suppress_tokens": list(range(30))},
    {"min_new_tokens": 5, "eos_token_id": MANY_ENDS},
    {"min_length": 9, "eos_token_id": MANY_ENDS},
    {"bad_words_ids": [[7], [1, 2]]},
    {"sequence_bias": [[[9], 4.0], [[1, 2], -3.0]]},
    {"no_repeat_ngram_size": 1},
    {"forced_eos_token_id": EOS},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [batch, 10 + len(ids) % 3, 20]},
    {"renormalize_logits": True},
    {"do_sample": True, "min_p": 0.05, "top_k": 20, "suppress_tokens": [3, 4, 5]},
]


@pytest.mark.parametrize("options", PROCESSORS, ids=lambda options: "+".join(options))
@pytest.mark.parametrize("how", [draw, search])
def test_translated_processors_do_what_transformers_own_do(
    how: Any, options: dict[str, Any]
) -> None:
    """Token for token, the translation is the run through materialised logits."""
    translated = how(**options, max_new_tokens=8)
    assert translated.equal(how(**options, max_new_tokens=8, materialize=True))
    plain = how(max_new_tokens=8, eos_token_id=options.get("eos_token_id", EOS))
    assert translated.equal(plain) == ("renormalize_logits" in options)


class Odd(LogitsProcessor):
    """A processor that nobody knows."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Forbid odd ids."""
        return scores.masked_fill(torch.arange(scores.shape[1]) % 2 == 1, -torch.inf)


@pytest.mark.parametrize("how", [draw, search])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repetition_penalty": 1.3}, r"^RepetitionPenaltyLogitsProcessor needs the logits'"),
        ({"logits_processor": [Odd()]}, r"^Odd needs the logits' values; materialize=True"),
        ({"do_sample": True, "typical_p": 0.5}, r"^TypicalLogitsWarper needs"),
        ({"do_sample": True, "top_p": 0.5, "min_p": 0.1}, r"^MinPLogitsWarper comes later"),
    ],
)
def test_what_has_no_translation_is_refused_or_materialised(
    how: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        how(**options)
    got = how(**options, materialize=True)
    if "logits_processor" in options:
        new = got[:, 4:]
        assert ((new % 2 == 0) | (new == PAD)).all()


@pytest.mark.parametrize("how", [draw, search])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}]
)
def test_a_warper_that_would_not_act_is_an_error(how: Any, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(ValueError, match=rf"^{name}=.* acts only with do_sample=True"):
        how(**options)


def test_several_ends_of_sequence_and_padding_after_them() -> None:
    ends = [EOS, 3, 11, 25]
    got = draw(PROMPTS.repeat(20, 1), eos_token_id=ends, max_new_tokens=20)[:, 4:]
    ended = 0
    for row in got:
        places = torch.isin(row, torch.tensor(ends)).nonzero().flatten()
        if len(places):
            ended += 1
            assert (row[int(places[0]) + 1 :] == PAD).all()
        else:
            assert (row != PAD).all() or PAD in row
    assert ended > 10
    beams = search(PROMPTS.repeat(5, 1), eos_token_id=ends, max_new_tokens=20)[:, 4:]
    over = torch.isin(beams, torch.tensor(ends)).int().cummax(1).values.bool()
    assert (beams[:, 1:][over[:, :-1]] == PAD).all()
    assert over.any(1).sum() > 10


class Recorder:
    """A streamer that remembers."""

    def __init__(self) -> None:
        self.heard: list[Tensor] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        """Keep what was streamed."""
        self.heard.append(value)

    def end(self) -> None:
        """Note the end."""
        self.ended = True


def test_streamers_hear_the_prompt_and_every_token() -> None:
    streamer = Recorder()
    got = draw(PROMPTS[:1], streamer=streamer)
    assert streamer.ended
    assert torch.cat([value.flatten() for value in streamer.heard]).equal(got[0])
    with pytest.raises(ValueError, match=r"^streamer cannot be used with beams"):
        search(PROMPTS[:1], streamer=Recorder())


class Until(StoppingCriteria):
    """Stop rows that have drawn an even id."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Look at the last token."""
        return input_ids[:, -1] % 2 == 0


def test_stopping_criteria_end_rows() -> None:
    given: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([Until()])}
    given["max_new_tokens"] = 12
    for row in draw(**given)[:, 4:]:
        even = (row % 2 == 0).nonzero().flatten()
        assert not len(even) or (row[int(even[0]) + 1 :] == PAD).all()
    beams = search(**given)[:, 4:]
    assert len(beams.unique(dim=0)) >= 5
    for row in beams:
        even = (row % 2 == 0).nonzero().flatten()
        assert (row[int(even[0]) + 1 :] == PAD).all() if len(even) else (row != PAD).all()


def test_dictionaries_hold_what_transformers_users_expect() -> None:
    with pytest.raises(ValueError, match=r"output_scores .* materialize=True$"):
        draw(return_dict_in_generate=True, output_scores=True)
    got = draw(
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_hidden_states=True,
        materialize=True,
        suppress_tokens=[1],
    )
    steps = got.sequences.shape[1] - 4
    assert len(got.scores) == len(got.logits) == len(got.hidden_states) == steps
    assert got.scores[0][:, 1].eq(-torch.inf).all()
    torch.testing.assert_close(got.logits[0], processed("Llama", PROMPTS), rtol=0, atol=1e-5)
    assert got.cache.get_seq_length() == got.sequences.shape[1] - 1


def teacher_forced(model: Any, sequences: Tensor, start: int, pad: int, eos: int) -> Tensor:
    """Return each sequence's log-probability under the model, to its first end of sequence."""
    with torch.no_grad():
        scores = model(sequences).logits[:, start - 1 : -1].double().log_softmax(2)
    new = sequences[:, start:]
    each = scores.gather(2, new[..., None])[..., 0]
    ended = (new == eos).cumsum(1) - (new == eos).long()
    total: Tensor = each.masked_fill(ended > 0, 0.0).sum(1)
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_differ_and_their_scores_are_teacher_forced_sums(family: str) -> None:
    got = search(
        family=family, num_beams=8, max_new_tokens=7, return_dict_in_generate=True, kappa=True
    )
    assert len(got.sequences) == 16
    for prompt in (got.sequences[:8], got.sequences[8:]):
        assert len(prompt.unique(dim=0)) == 8
    expected = teacher_forced(model_of(family), got.sequences, 4, PAD, EOS)
    torch.testing.assert_close(got.sequences_scores, expected, rtol=0, atol=3e-5)
    assert got.model_log_probs.equal(got.sequences_scores)
    assert {"sequences", "sequences_scores", "beam_keys"} <= set(got.keys())
    keys = got.beam_keys.view(2, 8)
    assert (keys.diff(dim=1) <= 0).all()
    assert (got.kappa <= keys[:, -1]).all()


def test_beam_indices_lead_back_to_transformers_transition_scores() -> None:
    """With our indices and per-step scores, transformers' own sum gives the sequence's score."""
    got = search(num_beams=4, max_new_tokens=5, return_dict_in_generate=True)
    indices, sequences = got.beam_indices, got.sequences
    assert indices.shape == (8, sequences.shape[1] - 4)
    assert (indices[:, 0].view(2, 4) == torch.tensor([[0], [4]])).all()
    ended = (sequences[:, 4:] == EOS).cumsum(1) - (sequences[:, 4:] == EOS).long() > 0
    assert (indices >= 0).equal(~ended)
    scores = []
    for t, step in enumerate(indices.unbind(1)):
        prefixes: dict[int, Tensor] = {}
        scores.append(torch.full((8, VOCAB), torch.nan))
        for beam, sequence in zip(step.tolist(), sequences[:, : 4 + t], strict=True):
            if beam >= 0:
                assert prefixes.setdefault(beam, sequence).equal(sequence)
                scores[t][beam] = processed("Llama", sequence[None])[0].log_softmax(0)
    model = model_of("Llama")
    each = model.compute_transition_scores(sequences, tuple(scores), indices)
    torch.testing.assert_close(each.sum(1).double(), got.sequences_scores, rtol=0, atol=1e-5)


def test_one_beam_is_plain_sampling() -> None:
    assert search(num_beams=1, max_new_tokens=9).equal(draw(max_new_tokens=9))


def test_fewer_beams_and_fewer_returned_are_a_prefix() -> None:
    many = search(PROMPTS[:1], num_beams=6, max_new_tokens=5)
    few = search(PROMPTS[:1], num_beams=3, max_new_tokens=5)
    width = min(many.shape[1], few.shape[1])
    assert many[:3, :width].equal(few[:, :width])
    some = search(PROMPTS[:1], num_beams=6, num_return_sequences=2, max_new_tokens=5)
    assert some.equal(many[:2])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"length_penalty": 2.0}, r"^length_penalty=2.0 would break the law"),
        ({"early_stopping": True}, r"^early_stopping=True would break the law"),
        ({"num_return_sequences": 6}, r"num_return_sequences"),
        ({"max_time": 5.0}, r"^MaxTimeCriteria does not depend on the sequence alone"),
        ({"return_dict_in_generate": True, "output_logits": True}, r"^output_logits, "),
        ({"prefill_chunk_size": 2}, r"^prefill_chunk_size is not supported"),
        ({"force_words_ids": [[5]]}, r"^force_words_ids is not supported .* got \[\[5\]\]$"),
        (
            {"guidance_scale": 1.5, "materialize": True},
            r"^UnbatchedClassifierFreeGuidanceLogitsProcessor keeps a state by row",
        ),
    ],
)
def test_what_would_break_beams_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        search(**options)


@pytest.mark.parametrize("how", [draw, search])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("penalty_alpha", 0.6),
        ("dola_layers", "low"),
        ("prompt_lookup_num_tokens", 3),
        ("assistant_model", "Llama"),
    ],
)
def test_other_ways_to_generate_are_refused(how: Any, option: str, value: Any) -> None:
    """They would be ignored without a word."""
    name = "sample" if how is draw else "stochastic_beam_search"
    given = model_of(value) if option == "assistant_model" else value
    with pytest.raises(ValueError, match=rf"^{option} is not supported by custom_generate={name}"):
        how(**{option: given})


@pytest.mark.parametrize("materialize", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_processors_that_count_prompts_do_so_beside_kappa(rows: int, materialize: bool) -> None:
    """With kappa a prompt has k + 1 rows, and transformers finds a row's prompt by k of them."""
    prompts = torch.arange(1, 1 + 3 * rows).view(rows, 3)
    given: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 3, "eos_token_id": None}
    given["prefix_allowed_tokens_fn"] = lambda prompt, ids: [prompt, 10 + len(ids), 20, 25 + prompt]
    expected = search(prompts, **given)
    got = search(prompts, **given, kappa=True, materialize=materialize)
    assert got.equal(expected)
    for prompt, drawn in enumerate(got[:, 3:].view(rows, 4, 3)):
        assert set(drawn.flatten().tolist()) <= {prompt, 13, 14, 15, 20, 25 + prompt}


class OneAnswer(StoppingCriteria):
    """A criterion of the old kind, which answers for all rows at once."""

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> bool:
        """Stop at six tokens."""
        return input_ids.shape[1] >= 6


def test_criteria_may_answer_with_one_bool() -> None:
    given: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([OneAnswer()])}
    for how in (draw, search):
        assert how(**given, eos_token_id=None).shape[1] == 6


class Letters:
    """A tokenizer whose token is a letter."""

    def get_vocab(self) -> dict[str, int]:
        """Name the ids."""
        return {chr(ord("A") + i): i for i in range(VOCAB)}

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join letters."""
        return "".join(tokens)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        """Read letters."""
        return {"input_ids": [ord(letter) - ord("A") for letter in text]}

    def _convert_id_to_token(self, i: int) -> str:
        return chr(ord("A") + i)


@pytest.mark.parametrize("how", [draw, search])
def test_stop_strings_are_given_as_their_criterion(how: Any) -> None:
    """Asked for by name they are an error of transformers, which keeps the tokenizer to itself."""
    tokenizer: Any = Letters()
    with pytest.raises(ValueError, match=r"one or more stop strings"):
        how(stop_strings=["H"], tokenizer=tokenizer)
    criterion = StopStringCriteria(tokenizer, stop_strings=["H", "J", "RS"])
    rows = PROMPTS if how is search else PROMPTS.repeat(20, 1)
    given: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([criterion])}
    got = how(rows, max_new_tokens=12, **given)[:, 4:]
    stopped = 0
    for row in got.tolist():
        written = "".join(chr(ord("A") + i) for i in row if i != PAD)
        ends = [written.find(text) + len(text) for text in ("H", "J", "RS") if text in written]
        stopped += bool(ends)
        assert not ends or min(ends) == len(written)
    assert stopped


def test_top_p_keeps_with_beams_what_it_keeps_without() -> None:
    """Those of transformers keep two tokens or more where there are beams."""
    tiny: dict[str, Any] = {"do_sample": True, "top_p": 1e-6, "max_new_tokens": 4}
    greedy = draw(**tiny)
    beams = search(**tiny, num_beams=2, return_dict_in_generate=True)
    assert beams.sequences[::2].equal(greedy)
    assert beams.sequences_scores[::2].abs().max() < 1e-5
    assert (beams.sequences[1::2, 4:] == PAD).all()
    assert beams.sequences_scores[1::2].eq(-torch.inf).all()
    own = search(**tiny, num_beams=2, materialize=True)
    assert not own[::2].equal(own[1::2])


@pytest.mark.parametrize(
    ("family", "own"),
    [("Rwkv", {}), ("RecurrentGemma", {"num_hidden_layers": 3, "lru_width": 16})],
)
def test_a_state_that_cannot_follow_beams_is_refused(family: str, own: dict[str, Any]) -> None:
    """It is handed on outside the cache, or kept in modules; without a cache beams are right."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().bfloat16()
    given: dict[str, Any] = {"custom_generate": stochastic_beam_search, "seed": 1, "num_beams": 3}
    with pytest.raises(ValueError, match=rf"^{family}ForCausalLM keeps a state outside the cache"):
        model.generate(PROMPTS, **given, max_new_tokens=4)
    given |= {"num_return_sequences": 3, "return_dict_in_generate": True, "use_cache": False}
    got = model.generate(PROMPTS, **given, max_new_tokens=4)
    expected = teacher_forced(model, got.sequences, 4, PAD, EOS)
    torch.testing.assert_close(got.sequences_scores, expected, rtol=0, atol=0.2)


def test_sample_refuses_beams() -> None:
    with pytest.raises(ValueError, match=r"^num_beams must be 1 for custom_generate=sample, got 4"):
        draw(num_beams=4)


def test_processors_that_leave_nothing_are_an_error() -> None:
    nothing: dict[str, Any] = {"suppress_tokens": list(range(VOCAB))}
    for how in (draw, search):
        with pytest.raises(ValueError, match=r"^the logits of row 0 are not a distribution"):
            how(**nothing)


def test_smollm2_writes_beams_without_duplicates() -> None:
    """A real model: 16 beams of 32 tokens, all different, and their own log-probabilities."""
    tokenizer, model = demo._load_smollm2()
    for seed, text in enumerate(("The capital of France is", "Once upon a time")):
        prompt = tokenizer(text, return_tensors="pt").input_ids
        got = model.generate(
            prompt,
            custom_generate=stochastic_beam_search,
            seed=seed,
            num_beams=16,
            num_return_sequences=16,
            max_new_tokens=32,
            return_dict_in_generate=True,
        )
        assert len(got.sequences.unique(dim=0)) == 16
        eos = tokenizer.eos_token_id
        expected = teacher_forced(model, got.sequences, prompt.shape[1], eos, eos)
        torch.testing.assert_close(got.sequences_scores, expected, rtol=0, atol=3e-4)
