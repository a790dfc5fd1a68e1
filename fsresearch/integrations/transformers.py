"""Exact sampling inside `transformers`: two functions for ``generate(custom_generate=...)``.

For example::

    from fsresearch.integrations.transformers import sample, stochastic_beam_search

    model.generate(**inputs, custom_generate=sample, do_sample=True, seed=1)
    model.generate(**inputs, custom_generate=stochastic_beam_search, num_beams=8, seed=1)

`generate` prepares everything as ever: padding, caches, processors, stopping criteria. Then hidden
states come from the base model, and the LM head runs tile by tile inside the sampler: logits
[rows, V] are not held, unless a filter or ``materialize=True`` asks for them. Known processors are
translated; others are refused by name.

Both functions sample whatever ``do_sample`` says. As elsewhere in transformers, temperature, top_k
(50 by default), top_p and min_p act only with ``do_sample=True``; without it tokens are drawn from
the model's own distribution, and a temperature or filter that would not act is an error. Of tied
logits top_k keeps exactly k, the lowest ids.

Noise is addressed by the seed of the row and the position of the token, counted without padding: a
prompt's continuation does not depend on its batch or padding, and a continuation that is continued
with the same seed is the one that would have been generated at once.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import stopping_criteria as criteria
from transformers.generation.utils import (
    GenerateBeamDecoderOnlyOutput,
    GenerateDecoderOnlyOutput,
)

from fsresearch import arguments, sampling
from fsresearch.integrations.heads import Head, head_of
from fsresearch.integrations.processors import Plan, translate
from fsresearch.results import BeamSample
from fsresearch.sources import LMHead
from fsresearch.without_replacement import stochastic_beam_search as beams
from fsresearch.without_replacement.refusals import refuse

__all__ = ["StochasticBeamOutput", "sample", "stochastic_beam_search"]

_WITH_ROWS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")


@dataclass
class StochasticBeamOutput(GenerateBeamDecoderOnlyOutput):
    """What stochastic beam search returns with ``return_dict_in_generate=True``.

    Sequences are in the order of their keys, so that the first n of k are a sample of n without
    replacement. sequences_scores are their log-probabilities under the distribution that was
    sampled, not divided by a length, and beam_indices are transformers'.

    Attributes:
        beam_keys: float64 [B n], log-probability plus Gumbel, normalised; decreasing by prompt.
        kappa: float64 [B], the (k+1)-th key, if asked for.
        model_log_probs: float64 [B n], under the model at temperature 1, without filters.
    """

    beam_keys: Tensor | None = None
    kappa: Tensor | None = None
    model_log_probs: Tensor | None = None


@torch.no_grad()
def sample(
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    seed: int | Tensor | None = None,
    role: int = 0,
    method: str = "gumbel-max",
    materialize: bool = False,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate by drawing every token exactly, as `fsresearch.sample` does.

    `generate` passes the first five arguments; users pass the others to `generate`.

    Args:
        model: a causal language model.
        input_ids: int64 [R, t], R prompts times num_return_sequences.
        logits_processor: translated to transform and filters (`processors`).
        stopping_criteria: as in transformers.
        generation_config: with num_beams = 1.
        seed: an int or int64 0-d tensor, from which every row's seed is derived; int64 [R], used
            as it is; None takes one from torch's generator.
        role: the caller's stream in [0, 32).
        method: one of `fsresearch.METHODS`.
        materialize: hold logits [R, V] and run all processors on them as transformers does; needed
            for processors without translation, output_scores and output_logits.
        streamer: found by itself where `generate` does not pass it on.
        model_kwargs: what the model's forward takes.

    Returns:
        What transformers' own sampling returns: sequences, or with return_dict_in_generate a
        GenerateDecoderOnlyOutput.

    Raises:
        ValueError: Naming what cannot be honoured.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes)).eval()
    >>> prompt, same = torch.tensor([[5, 6, 7]]), {"seed": 1, "max_new_tokens": 4}
    >>> drawn = model.generate(prompt, custom_generate=sample, **same)
    >>> drawn.equal(model.generate(prompt, custom_generate=sample, method="gumbel-max", **same))
    True
    """
    config = generation_config
    _check_config(config, "sample")
    if config.num_beams != 1:
        raise ValueError(
            f"num_beams must be 1 for custom_generate=sample, got {config.num_beams}; "
            "custom_generate=stochastic_beam_search draws sequences without replacement"
        )
    wanted = config.return_dict_in_generate
    if wanted and (config.output_scores or config.output_logits) and not materialize:
        raise ValueError("output_scores and output_logits hold [rows, V]: pass materialize=True")
    streamer = streamer if streamer is not None else _streamer_of_generate()
    run = _Run(model, input_ids, logits_processor, model_kwargs, config, materialize)
    input_ids = input_ids.to(run.head.weight.device)
    noise = arguments.row_noise(seed, 0, role, 1, len(input_ids), input_ids.device)
    position = _first_position(input_ids, model_kwargs)
    pad = config._pad_token_tensor
    ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    growing = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
    scores: tuple[Tensor, ...] | None = () if wanted and config.output_scores else None
    logits: tuple[Tensor, ...] | None = () if wanted and config.output_logits else None
    drawing: dict[str, Any] = {"seed": noise.seeds, "role": role, "method": method}
    while growing.any():
        hidden = run.forward(input_ids)
        if materialize:
            raw = run.raw_logits(hidden)
            processed = logits_processor(input_ids, raw.clone())
            logits = None if logits is None else (*logits, raw)
            scores = None if scores is None else (*scores, processed)
            drawn = sampling.sample_logits(processed, position=position, **drawing)
        else:
            drawn = run.draw(input_ids, hidden, position=position, **drawing)
        _check_drawn(drawn.valid | ~growing)
        token = drawn.token[:, 0]
        if ends:
            token = torch.where(growing, token, pad.to(token.device))
        input_ids = torch.cat([input_ids, token[:, None]], 1)
        position = position + 1
        if streamer is not None:
            streamer.put(token.cpu())
        growing = growing & ~stopping_criteria(input_ids, scores)
    if streamer is not None:
        streamer.end()
    if not wanted:
        return input_ids
    output: dict[str, Any] = {"sequences": input_ids, "scores": scores, "logits": logits}
    if config.output_attentions:
        output["attentions"] = tuple(run.attentions)
    if config.output_hidden_states:
        output["hidden_states"] = tuple(run.hidden_states)
    return GenerateDecoderOnlyOutput(**output, cache=run.model_kwargs.get("cache"))


@torch.no_grad()
def stochastic_beam_search(
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    seed: int | Tensor | None = None,
    role: int = 0,
    root: str = "gumbel",
    kappa: bool = False,
    materialize: bool = False,
    **model_kwargs: Any,
) -> Any:
    """Generate num_beams different continuations a prompt, exactly without replacement.

    `generate` passes the first five arguments; users pass the others to `generate`. Continuations
    are in the order of their keys, num_return_sequences of them a prompt. length_penalty acts on
    nothing (its default in transformers is 1, which is let pass), and what would break the law is
    refused.

    Args:
        model: a causal language model.
        input_ids: int64 [B k, t], every prompt k = num_beams times, as `generate` repeats them.
        logits_processor: translated to bias, temperature and filters; every step renormalises.
        stopping_criteria: length and end of sequence; others are asked about each sequence, and
            must depend on nothing else.
        generation_config: with num_beams.
        seed: an int or int64 0-d tensor, from which every prompt's seed is derived; int64 [B], used
            as it is; None takes one from torch's generator.
        role: the caller's stream in [0, 32).
        root: "gumbel" or "zero", see `fsresearch.stochastic_beam_search`.
        kappa: also return the (k+1)-th key, which estimators need and which takes one beam more.
        materialize: hold logits [B k, V] and run all processors on them as transformers does.
        model_kwargs: what the model's forward takes.

    Returns:
        Sequences int64 [B n, t + L], or with return_dict_in_generate a StochasticBeamOutput.

    Raises:
        ValueError: Naming what cannot be honoured.

    Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes)).eval()
    >>> drawn = model.generate(
    ...     torch.tensor([[5, 6, 7]]),
    ...     custom_generate=stochastic_beam_search,
    ...     num_beams=8,
    ...     num_return_sequences=8,
    ...     max_new_tokens=4,
    ...     seed=1,
    ... )
    >>> len(drawn.unique(dim=0))
    8
    """
    config = generation_config
    _check_config(config, "stochastic_beam_search")
    _check_beams(config, stopping_criteria)
    beams_a_prompt = config.num_beams
    prompts = input_ids[::beams_a_prompt]
    rows, start = prompts.shape
    model_kwargs = {
        name: value[::beams_a_prompt]
        if isinstance(value, Tensor) and value.dim() and len(value) == len(input_ids)
        else value
        for name, value in model_kwargs.items()
    }
    run = _Run(model, prompts, logits_processor, model_kwargs, config, materialize)
    prompts = prompts.to(run.head.weight.device)
    first = _first_position(prompts, model_kwargs)

    def whole(prefixes: Tensor) -> Tensor:
        """The prompts before their prefixes, [R, start + t]."""
        return torch.cat([prompts.repeat_interleave(len(prefixes) // rows, 0), prefixes], 1)

    def step(prefixes: Tensor, parents: Tensor, _: None) -> tuple[Tensor | LMHead, None]:
        ids = whole(prefixes)
        if prefixes.shape[1]:
            run.reorder(parents)
        hidden = run.forward(ids)
        copies = beams_a_prompt if len(ids) == rows else 1
        ids = ids.repeat_interleave(copies, 0)
        if materialize:
            logits = run.raw_logits(hidden).repeat_interleave(copies, 0)
            scores: Tensor = logits_processor(ids, logits)
            return scores[::copies], None
        bias = run.plan.bias(ids, len(run.head.weight), hidden.device)
        if bias is not None and bias.dim() == 2:
            bias = bias[::copies]
        return run.head.source(hidden, bias), None

    others = [c for c in stopping_criteria if not isinstance(c, _OWN_CRITERIA)]

    def stop(prefixes: Tensor) -> Tensor:
        ids = whole(prefixes)
        return torch.stack([criterion(ids, None) for criterion in others]).any(0)

    eos, pad = config._eos_token_tensor, config._pad_token_tensor
    drawn = beams.stochastic_beam_search(
        step,
        None,
        beams_a_prompt,
        config.max_length - start,
        None if eos is None else eos.flatten().tolist(),
        rows=rows,
        seed=seed,
        position=first,
        role=role,
        root=root,  # type: ignore[arg-type]
        stop=stop if others else None,
        kappa=kappa,
        pad_id=0 if pad is None else int(pad),
        device=prompts.device,
        **run.plan.rule(),
    )
    _check_drawn(drawn.num_valid > 0)
    return _beam_output(drawn, prompts, config, run)


class _Run:
    """A model during one call of `generate`: its cache and masks, its head, its processors."""

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        processors: Any,
        model_kwargs: dict[str, Any],
        config: Any,
        materialize: bool,
    ) -> None:
        self.model = model
        self.head: Head = head_of(model)
        self.plan = Plan() if materialize else translate(processors)
        self.model_kwargs = model_kwargs
        self.next_length = _uncached_length(input_ids, model_kwargs, config)
        self.started = False
        self.rows = len(input_ids)
        self.attentions: list[Any] = []
        self.hidden_states: list[Any] = []
        self.keeps = config.return_dict_in_generate

    def forward(self, input_ids: Tensor) -> Tensor:
        """Run the base model on what it has not seen of [R, t]; return hidden states [R, D]."""
        model = self.model
        inputs = model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=self.next_length,
            is_first_iteration=not self.started,
            **self.model_kwargs,
        )
        inputs.pop("logits_to_keep", None)
        outputs = model.base_model(**inputs, return_dict=True)
        self.model_kwargs = model._update_model_kwargs_for_generation(outputs, self.model_kwargs)
        self.started, self.rows = True, len(input_ids)
        self.next_length = 1 if self.model_kwargs["use_cache"] else None
        if self.keeps:
            self.attentions.append(outputs.get("attentions"))
            self.hidden_states.append(outputs.get("hidden_states"))
        hidden: Tensor = outputs.last_hidden_state[:, -1]
        return hidden

    def reorder(self, parents: Tensor) -> None:
        """Let row r of cache and masks continue row parents[r] of the last call."""
        for name in _WITH_ROWS:
            value = self.model_kwargs.get(name)
            if value is not None and value.dim() == 2 and len(value) == self.rows:
                self.model_kwargs[name] = value.index_select(0, parents)
        cache = self.model_kwargs.get("cache")
        if cache is None:
            return
        if hasattr(self.model, "_reorder_cache"):
            self.model_kwargs["cache"] = self.model._reorder_cache(cache, parents)
        else:
            cache.reorder_cache(parents)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return the model's logits float32 [R, V]."""
        return self.head.source(hidden).tile(0, len(self.head.weight)).logits

    def draw(self, input_ids: Tensor, hidden: Tensor, **address: Any) -> Any:
        """Draw one token a row from hidden states [R, D] by `fsresearch.sample`."""
        head = self.head
        bias = self.plan.bias(input_ids, len(head.weight), hidden.device)
        if head.bias is not None:
            bias = head.bias if bias is None else head.bias + bias
        return sampling.sample(
            hidden.to(head.weight.dtype),
            head.weight,
            bias=None if bias is None else bias.float(),
            softcap=head.softcap,
            logit_scale=head.logit_scale,
            **self.plan.rule(),
            **address,
        )


_OWN_CRITERIA = (criteria.MaxLengthCriteria, criteria.EosTokenCriteria)


def _beam_output(drawn: BeamSample, prompts: Tensor, config: Any, run: _Run) -> Any:
    """Return what transformers returns for beams: the first sequences of every prompt."""
    count = config.num_return_sequences
    sequences = drawn.sequences[:, :count].flatten(0, 1)
    sequences = torch.cat([prompts.repeat_interleave(count, 0), sequences], 1)
    if not config.return_dict_in_generate:
        return sequences
    output: dict[str, Any] = {
        "sequences": sequences,
        "sequences_scores": drawn.log_probs[:, :count].flatten(),
        "beam_indices": _beam_indices(drawn)[:, :count].flatten(0, 1),
        "cache": run.model_kwargs.get("cache"),
        "beam_keys": drawn.keys[:, :count].flatten(),
        "model_log_probs": drawn.model_log_probs[:, :count].flatten(),
    }
    return StochasticBeamOutput(**output, kappa=drawn.kappa)


def _beam_indices(drawn: BeamSample) -> Tensor:
    """Return the flat beam that each token was added to, int64 [B, k, L]; -1 after the end."""
    rows, beams_a_prompt, longest = drawn.sequences.shape
    place = torch.arange(beams_a_prompt, device=drawn.tokens.device).expand(rows, -1)
    offset = torch.arange(rows, device=place.device)[:, None] * beams_a_prompt
    steps = []
    for parents, tokens in zip(drawn.backpointers.flip(0), drawn.tokens.flip(0), strict=True):
        parent = parents.gather(1, place)
        steps.append(torch.where(tokens.gather(1, place) >= 0, parent + offset, -1))
        place = parent
    return torch.stack(steps[::-1], 2)[..., :longest]


def _first_position(input_ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
    """Return how many tokens, without padding, stand before the first new one, int64 [R]."""
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.dim() == 2 and positions.shape[1]:
        counts: Tensor = positions[:, -1].long() + 1
        return counts.expand(len(input_ids)).to(input_ids.device)
    mask = model_kwargs.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        counts = mask.sum(1)
        return counts.to(input_ids.device)
    embedded = model_kwargs.get("inputs_embeds")
    length = input_ids.shape[1] if embedded is None else embedded.shape[1]
    return torch.full((len(input_ids),), length, device=input_ids.device)


def _uncached_length(input_ids: Tensor, model_kwargs: dict[str, Any], config: Any) -> int | None:
    """Return how many of the last tokens a cache that was passed in has not seen; None for all."""
    cache = model_kwargs.get("cache")
    past = 0 if cache is None else cache.get_seq_length()
    if not past:
        return None
    embedded, mask = model_kwargs.get("inputs_embeds"), model_kwargs.get("attention_mask")
    if embedded is not None:
        return int(embedded.shape[1] - past)
    length = getattr(config, "_mask_length", -1) if mask is None else mask.shape[1]
    return int(input_ids.shape[1] - past) if length == input_ids.shape[1] else None


def _streamer_of_generate() -> Any:
    """Find the streamer of the running `generate`, which hands it to no callable (5.24)."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _GENERATE:
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None


_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def _check_config(config: Any, name: str) -> None:
    """Raise for options that would silently do nothing."""
    if config.prefill_chunk_size is not None:
        raise ValueError(f"prefill_chunk_size is not supported by custom_generate={name}")
    neutral = {"temperature": (1.0,), "top_k": (0, 50), "top_p": (1.0,), "min_p": (0.0,)}
    for option, values in neutral.items():
        value = getattr(config, option, None)
        if not config.do_sample and value is not None and value not in values:
            raise ValueError(f"{option}={value} acts only with do_sample=True, got do_sample=False")


def _check_beams(config: Any, stopping_criteria: Any) -> None:
    """Raise for options that would break the law of beams, or that beams do not have."""
    if config.length_penalty not in (None, 1.0):
        refuse("length_penalty", config.length_penalty)
    if config.early_stopping != "never":
        refuse("early_stopping", config.early_stopping)
    for option, neutral in (("num_beam_groups", 1), ("diversity_penalty", 0.0)):
        value = getattr(config, option, None)
        refuse(option, neutral if value is None else value)
    if not 1 <= config.num_return_sequences <= config.num_beams:
        raise ValueError(
            f"num_return_sequences must be in [1, num_beams], got {config.num_return_sequences} "
            f"with num_beams={config.num_beams}"
        )
    if config.output_logits or config.output_attentions or config.output_hidden_states:
        raise ValueError("output_logits, output_attentions and output_hidden_states are not kept")
    for criterion in stopping_criteria:
        if isinstance(criterion, (criteria.MaxTimeCriteria, criteria.ConfidenceCriteria)):
            raise ValueError(
                f"{type(criterion).__name__} does not depend on the sequence alone, so that beams "
                "that it stops would be no sample of sequences"
            )
    if _streamer_of_generate() is not None:
        raise ValueError("streamer cannot be used with beams, got one")


def _check_drawn(valid: Tensor) -> None:
    """Raise where a row's logits are not a distribution: there is no id to go on with."""
    bad = (~valid).nonzero()
    if len(bad):
        raise ValueError(
            f"the logits of row {int(bad[0])} are not a distribution: processors leave no token, "
            "or there is a NaN or +inf"
        )
