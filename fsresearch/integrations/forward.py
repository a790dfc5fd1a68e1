"""A model during one call of `generate`: its cache and masks, its head, its processors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsresearch import sampling
from fsresearch.integrations.heads import Head, head_of
from fsresearch.integrations.processors import Plan, translate

__all__ = ["Run", "first_position"]

_WITH_ROWS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")
_STATE_IN_MODULES = ("recurrent_gemma",)


class Run:
    """Runs the base model on what it has not seen, and keeps what the next step needs.

    Args:
        model: a causal language model.
        input_ids: int64 [R, t], the prompts.
        processors: the logits processors that `generate` made.
        model_kwargs: what the model's forward takes.
        config: the generation configuration.
        materialize: whether processors stay as they are instead of being translated.
    """

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
        cache, uses = self.model_kwargs.get("cache"), self.model_kwargs["use_cache"]
        if uses and (cache is None or self.model.config.model_type in _STATE_IN_MODULES):
            raise ValueError(
                f"{type(self.model).__name__} keeps a state outside the cache, which follows no "
                "beams; use_cache=False goes without"
            )
        if cache is None:
            return
        if hasattr(self.model, "_reorder_cache"):
            self.model_kwargs["cache"] = self.model._reorder_cache(cache, parents)
        else:
            cache.reorder_cache(parents)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return the model's logits float32 [R, V]."""
        return self.head.source(hidden).tile(0, len(self.head.weight)).logits

    def bias(self, input_ids: Tensor) -> Tensor | None:
        """Return what the processors add after the tokens [R, t]: float32 [V] or [R, V]."""
        return self.plan.bias(input_ids, len(self.head.weight), self.head.weight.device)

    def draw(self, input_ids: Tensor, hidden: Tensor, **address: Any) -> Any:
        """Draw one token a row from hidden states [R, D] by `fsresearch.sample`."""
        head = self.head
        bias = self.bias(input_ids)
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


def first_position(input_ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
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
    past = 0 if cache is None or all(cache.is_linear) else cache.get_seq_length()
    if not past:
        return None
    embedded, mask = model_kwargs.get("inputs_embeds"), model_kwargs.get("attention_mask")
    if embedded is not None:
        return int(embedded.shape[1] - past)
    length = getattr(config, "_mask_length", -1) if mask is None else mask.shape[1]
    return int(input_ids.shape[1] - past) if length == input_ids.shape[1] else None
