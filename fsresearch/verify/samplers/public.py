"""Samplers that people use, as the bench sees them; each holds [B, V] and takes global state."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsresearch.verify.sampler import Drawn, Request, Sampler

__all__ = ["PUBLIC"]


def _multinomial(dtype: torch.dtype, request: Request) -> Drawn:
    """Draw by torch.multinomial from softmax probabilities of some precision."""
    probabilities = torch.softmax(_scaled(request), 1).to(dtype)
    if request.k:
        return Drawn(torch.multinomial(probabilities, request.k))
    return Drawn(torch.multinomial(probabilities, request.num_samples, replacement=True))


def _categorical(request: Request) -> Drawn:
    """Draw by torch.distributions.Categorical, with its validation on."""
    law = torch.distributions.Categorical(logits=_scaled(request), validate_args=True)
    return Drawn(law.sample((request.num_samples,)).T)


def _gumbel_softmax(request: Request) -> Drawn:
    """Draw by torch.nn.functional.gumbel_softmax(hard=True)."""
    one_hot = torch.nn.functional.gumbel_softmax(_scaled(request), hard=True)
    return Drawn(one_hot.argmax(1, keepdim=True))


def _numpy_choice(request: Request) -> Drawn:
    """Draw by numpy.random.Generator.choice from float64 probabilities, a row at a time."""
    seed: Any = request.seed
    generator = np.random.default_rng(seed)
    logits = _scaled(request).double()
    rows = []
    for weights in torch.softmax(logits, 1).cpu().numpy():
        size = request.k or request.num_samples
        rows.append(generator.choice(len(weights), size, p=weights, replace=not request.k))
    return Drawn(torch.from_numpy(np.array(rows)).to(logits.device))


def _transformers(request: Request) -> Drawn:
    """Draw as the sampling step of transformers' generate does: warp, softmax, multinomial."""
    from transformers import TemperatureLogitsWarper

    scores = request.logits
    if request.temperature != 1.0:
        warp: Any = TemperatureLogitsWarper(request.temperature)
        scores = warp(None, scores)
    probabilities = torch.nn.functional.softmax(scores, dim=-1)
    return Drawn(torch.multinomial(probabilities, num_samples=1))


def _flashinfer(request: Request) -> Drawn:
    """Draw by FlashInfer's sampling_from_logits; CUDA only."""
    import flashinfer

    token: Tensor = flashinfer.sampling.sampling_from_logits(_scaled(request).contiguous())
    return Drawn(token.long()[:, None])


def _scaled(request: Request) -> Tensor:
    return request.logits if request.temperature == 1.0 else request.logits / request.temperature


_TORCH = f"torch {torch.__version__}"
_DTYPES = {"": torch.float32, "-bfloat16": torch.bfloat16, "-float16": torch.float16}

PUBLIC: dict[str, Sampler] = {
    f"torch-multinomial{suffix}": Sampler(
        f"torch-multinomial{suffix}",
        partial(_multinomial, dtype),
        frozenset({"temperature", "num-samples", "cheap-draws", "without-replacement"}),
        _TORCH,
    )
    for suffix, dtype in _DTYPES.items()
}
PUBLIC |= {
    f"torch-multinomial-single{suffix}": Sampler(
        f"torch-multinomial-single{suffix}",
        partial(_multinomial, dtype),
        frozenset({"temperature"}),
        _TORCH,
    )
    for suffix, dtype in _DTYPES.items()
}
PUBLIC["torch-categorical"] = Sampler(
    "torch-categorical",
    _categorical,
    frozenset({"temperature", "num-samples", "cheap-draws"}),
    _TORCH,
)
PUBLIC["torch-gumbel-softmax"] = Sampler(
    "torch-gumbel-softmax", _gumbel_softmax, frozenset({"temperature"}), _TORCH
)
PUBLIC["numpy-choice"] = Sampler(
    "numpy-choice",
    _numpy_choice,
    frozenset({"seed", "temperature", "num-samples", "cheap-draws", "without-replacement"}),
    f"numpy {np.__version__}",
)
if importlib.util.find_spec("transformers"):
    PUBLIC["transformers-generate"] = Sampler(
        "transformers-generate",
        _transformers,
        frozenset({"temperature"}),
        f"transformers {importlib.metadata.version('transformers')}, {_TORCH}",
    )
if importlib.util.find_spec("flashinfer"):
    PUBLIC["flashinfer"] = Sampler(
        "flashinfer",
        _flashinfer,
        frozenset({"temperature"}),
        f"flashinfer {importlib.metadata.version('flashinfer-python')}, {_TORCH}",
    )
