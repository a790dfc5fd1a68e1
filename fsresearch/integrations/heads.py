"""The LM head of a transformers model: its weight, and what is done to the logits behind it.

Families differ in what follows the matrix product. What is known is read from the model and its
configuration, and then held against the model's own logits of a few tokens, once a model: a family
that does something else is refused instead of being sampled from other logits than its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from fsresearch.sources import LMHead
from fsresearch.transforms import Transform

__all__ = ["Head", "head_of"]

_CHECKED: WeakSet[torch.nn.Module] = WeakSet()
_PROBE = range(1, 9)
_TOLERANCE = {torch.float32: 1e-4}
_HALF_TOLERANCE = 2**-6


class Head(NamedTuple):
    """What turns hidden states into logits.

    Attributes:
        weight: [V, D].
        logit_scale: multiplies the logits (Cohere's logit_scale, one over Granite's
            logits_scaling).
        softcap: c in c tanh(logit / c), after the scale (Gemma's final_logit_softcapping).
        bias: [V], added (Phi, GPT-J, CodeGen).
    """

    weight: Tensor
    logit_scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None

    def source(self, hidden: Tensor, bias: Tensor | None = None) -> LMHead:
        """Return the source of the logits of hidden states [R, D], with more bias if given."""
        if self.bias is not None:
            bias = self.bias if bias is None else self.bias + bias
        transform = Transform(self.logit_scale, self.softcap, bias)
        return LMHead(hidden.to(self.weight.dtype), self.weight, transform)


@torch.no_grad()
def head_of(model: Any) -> Head:
    """Describe a model's LM head, checked against the model's own logits.

    Args:
        model: a transformers causal language model.

    Raises:
        ValueError: If it is no decoder with a plain linear head, or its logits are not those of
            the description.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes))
    >>> head_of(model.eval()).weight.shape
    torch.Size([32, 8])
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"model must be decoder-only, got the encoder-decoder {name}")
    layer = model.get_output_embeddings()
    if type(layer) is not torch.nn.Linear or not layer.weight.is_floating_point():
        raise ValueError(
            f"the output head of {name} must be a plain torch.nn.Linear, got {type(layer).__name__}"
        )
    config = model.config.get_text_config(decoder=True)
    divisor = getattr(config, "logits_scaling", None)
    scale = getattr(model, "logit_scale", None) if divisor is None else 1 / divisor
    softcap = getattr(config, "final_logit_softcapping", None)
    bias: Tensor | None = layer.bias
    if isinstance(scale, Tensor) or (bias is not None and softcap is not None):
        raise ValueError(f"{name} has a logit scale per token, or a bias under a softcap")
    if bias is not None:
        bias = bias.detach() * (1.0 if scale is None else scale)
    head = Head(layer.weight.detach(), scale, softcap, bias)
    if model not in _CHECKED and not model.training:
        _check(model, head)
        _CHECKED.add(model)
    return head


def _check(model: Any, head: Head) -> None:
    """Compare the description with the model's own logits of a few tokens."""
    vocab = len(head.weight)
    ids = torch.tensor([[i * 7919 % vocab for i in _PROBE]], device=model.device)
    own = model(input_ids=ids, use_cache=False).logits[0].float()
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    ours = head.source(hidden).tile(0, vocab).logits
    tolerance = _TOLERANCE.get(head.weight.dtype, _HALF_TOLERANCE)
    if not own.shape == ours.shape:
        raise ValueError(
            f"{type(model).__name__} has logits {list(own.shape)} for {len(_PROBE)} ids"
        )
    error = float((own - ours).abs().max() / own.abs().max().clamp(min=1e-30))
    if not error <= tolerance:
        raise ValueError(
            f"the logits of {type(model).__name__} are not those of its output head, scaled, "
            f"softcapped and biased as its configuration says: they differ by {error:.2g} of the "
            "largest"
        )
