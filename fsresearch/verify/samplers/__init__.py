"""Samplers that the bench knows by name, and how any other one is named."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from fsresearch.verify.sampler import Sampler, adapt
from fsresearch.verify.samplers.own import OWN
from fsresearch.verify.samplers.public import PUBLIC

__all__ = ["OWN", "PUBLIC", "find"]


def find(name: str) -> Sampler:
    """Return the sampler of a name, or of ``module:callable``.

    The callable may be a Sampler; any other is adapted from its signature. Modules are looked for
    in the working directory as well.

    Raises:
        ValueError: If there is none.

    >>> find("gumbel-max").name
    'gumbel-max'
    >>> find("nothing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: sampler must be module:callable or one of gumbel-max, ...; got nothing
    """
    known = {**OWN, **PUBLIC}
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"sampler must be module:callable or one of {', '.join(known)}; got {name}"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} cannot be imported: {error}") from error
    return found if isinstance(found, Sampler) else adapt(found, name=name)
