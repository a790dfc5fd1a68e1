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

Stop strings need the tokenizer, which transformers 5.24 does not hand on where ``custom_generate``
is a function; give ``stopping_criteria=[StopStringCriteria(tokenizer, ["..."])]`` instead. With
beams transformers' own top_p and min_p keep one token more than there are ends of sequence, for the
sake of beam search; here they keep what they keep without beams.

Noise is addressed by the seed of the row and the position of the token, counted without padding: a
prompt's continuation does not depend on its batch or padding, and a continuation that is continued
with the same seed is the one that would have been generated at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as criteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from fsresearch import arguments, sampling
from fsresearch.integrations.beam_output import beam_output
from fsresearch.integrations.forward import Run, first_position
from fsresearch.integrations.requested import check_beams, check_config, of_generate
from fsresearch.sources import LMHead
from fsresearch.without_replacement import stochastic_beam_search as beams

__all__ = ["sample", "stochastic_beam_search"]


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
    check_config(config, "sample")
    if config.num_beams != 1:
        raise ValueError(
            f"num_beams must be 1 for custom_generate=sample, got {config.num_beams}; "
            "custom_generate=stochastic_beam_search draws sequences without replacement"
        )
    wanted = config.return_dict_in_generate
    if wanted and (config.output_scores or config.output_logits) and not materialize:
        raise ValueError("output_scores and output_logits hold [rows, V]: pass materialize=True")
    streamer = streamer if streamer is not None else of_generate("streamer")
    run = Run(model, input_ids, logits_processor, model_kwargs, config, materialize)
    input_ids = input_ids.to(run.head.weight.device)
    noise = arguments.row_noise(seed, 0, role, 1, len(input_ids), input_ids.device)
    position = first_position(input_ids, model_kwargs)
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
    are in the order of their keys, num_return_sequences of them a prompt; where fewer have mass,
    the rest is padding with scores -inf. length_penalty acts on nothing (its default in
    transformers is 1, which is let pass), and what would break the law is refused.

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
        Sequences int64 [B n, t + L], or with return_dict_in_generate a StochasticBeamOutput, see
        `fsresearch.integrations.beam_output`.

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
    check_config(config, "stochastic_beam_search")
    check_beams(config, logits_processor, stopping_criteria)
    beams_a_prompt = config.num_beams
    prompts = input_ids[::beams_a_prompt]
    rows, start = prompts.shape
    model_kwargs = {
        name: value[::beams_a_prompt]
        if isinstance(value, Tensor) and value.dim() and len(value) == len(input_ids)
        else value
        for name, value in model_kwargs.items()
    }
    run = Run(model, prompts, logits_processor, model_kwargs, config, materialize)
    prompts = prompts.to(run.head.weight.device)
    first = first_position(prompts, model_kwargs)

    def whole(prefixes: Tensor) -> Tensor:
        """The prompts before their prefixes, [R, start + t]."""
        return torch.cat([prompts.repeat_interleave(len(prefixes) // rows, 0), prefixes], 1)

    def step(prefixes: Tensor, parents: Tensor, _: None) -> tuple[Tensor | LMHead, None]:
        ids = whole(prefixes)
        if prefixes.shape[1]:
            run.reorder(parents)
        hidden = run.forward(ids)
        if materialize:
            logits = run.raw_logits(hidden)
            return _in_full_beams(logits_processor, beams_a_prompt, rows, ids, logits), None
        if not run.plan.by_row:
            return run.head.source(hidden, run.bias(ids)), None
        bias = _in_full_beams(run.bias, beams_a_prompt, rows, ids)
        return run.head.source(hidden, bias), None

    others = criteria.StoppingCriteriaList(
        criterion for criterion in stopping_criteria if not isinstance(criterion, _OWN_CRITERIA)
    )

    def stop(prefixes: Tensor) -> Tensor:
        over: Tensor = others(whole(prefixes), None)
        return over

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
    return beam_output(drawn, prompts, config, run.model_kwargs.get("cache"))


def _in_full_beams(
    function: Callable[..., Any], beams_a_prompt: int, rows: int, *values: Tensor
) -> Tensor:
    """Call a function of rows [B k, ...] on any number of beams a prompt, [B w, ...].

    Processors count prompts by the k rows of each. The first step has one, and kappa has k + 1.
    """
    parts = [value.unflatten(0, (rows, -1)).split(beams_a_prompt, 1) for value in values]
    answers = []
    for group in zip(*parts, strict=True):
        width = group[0].shape[1]
        full = (part[:, [*range(width), *[0] * (beams_a_prompt - width)]] for part in group)
        answer = function(*(part.flatten(0, 1) for part in full))
        answers.append(answer.unflatten(0, (rows, beams_a_prompt))[:, :width])
    return torch.cat(answers, 1).flatten(0, 1)


_OWN_CRITERIA = (criteria.MaxLengthCriteria, criteria.EosTokenCriteria)


def _check_drawn(valid: Tensor) -> None:
    """Raise where a row's logits are not a distribution: there is no id to go on with."""
    bad = (~valid).nonzero()
    if len(bad):
        raise ValueError(
            f"the logits of row {int(bad[0])} are not a distribution: processors leave no token, "
            "or there is a NaN or +inf"
        )
