"""The tree: its levels hold the masses of a nested partition, and no walk enters an empty part."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch import hierarchy
from fsresearch.hierarchy import LogMassTree
from fsresearch.noise import NODE, RowNoise, gumbel, gumbel_from_bits
from fsresearch.sampling import sample, sample_logits
from fsresearch.sources import LMHead, Logits
from fsresearch.theory.categorical import log_normalizer

NOISE = RowNoise(torch.tensor([5, 6]), torch.tensor(3), torch.arange(40))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 4


@pytest.mark.parametrize(
    "vocab, fan_out, sizes",
    [
        (1000, 64, [16, 1]),
        (5000, 64, [79, 2, 1]),
        (64, 64, [1]),
        (65, 64, [2, 1]),
        (9, 2, [5, 3, 2, 1]),
        (1000, (10, 7), [100, 15, 1]),
        (1000, (10,), [100, 1]),
        (1, 64, [1]),
    ],
)
def test_levels_hold_the_masses_of_their_parts(
    vocab: int, fan_out: int | tuple[int, ...], sizes: list[int]
) -> None:
    logits = normal(2, vocab)
    logits[1, : vocab // 2] = -torch.inf
    tree = LogMassTree(Logits(logits), fan_out)
    assert [level.shape[1] for level in tree.levels] == sizes
    leaves = 1
    for level, fan in zip(tree.levels, tree.fan_outs, strict=True):
        leaves *= fan
        for row in range(2):
            parts = logits[row].double().numpy()
            expected = [log_normalizer(parts[i : i + leaves]) for i in range(0, vocab, leaves)]
            np.testing.assert_allclose(level[row].numpy(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tree.log_normalizer, logits.logsumexp(1), rtol=1e-6, atol=1e-6)


def test_a_draw_is_a_gumbel_choice_a_level() -> None:
    """The walk, retraced with words taken by address: node numbers are breadth-first."""
    vocab, draws = 300, 5
    logits = normal(1, vocab)
    noise = RowNoise(torch.tensor([8]), torch.tensor(2), torch.arange(draws), 3)
    tree = LogMassTree(Logits(logits), (10, 4))
    assert [level.shape[1] for level in tree.levels] == [30, 8, 1]
    drawn = tree.draw(noise)[0]
    high, _, low, _ = noise.words(torch.arange(1 + 8 + 30), NODE)
    node_noise = gumbel_from_bits(high, low)[0]
    for draw in range(draws):
        top = int((tree.levels[1][0] + node_noise[draw, 1:9]).argmax())
        children = range(4 * top, min(4 * top + 4, 30))
        scores = [float(tree.levels[0][0, c] + node_noise[draw, 9 + c]) for c in children]
        group = children[int(np.argmax(scores))]
        tokens = torch.arange(10 * group, 10 * group + 10)
        leaf = gumbel(noise.seeds, tokens, draw=draw, position=2, role=3)[0]
        assert drawn[draw] == tokens[(logits[0, tokens] + leaf).argmax()]


@pytest.mark.parametrize("fan_out", [64, 2, (3, 5)])
def test_only_the_token_with_mass_is_found(fan_out: int | tuple[int, ...]) -> None:
    for token in (0, 1, 63, 64, 200, 299):
        logits = torch.full((2, 300), -torch.inf)
        logits[:, token] = -1e4
        drawn = LogMassTree(Logits(logits), fan_out).draw(NOISE)
        assert (drawn == token).all()


def test_rows_that_are_no_distributions() -> None:
    logits = normal(5, 200)
    logits[1] = -torch.inf
    logits[2, 150] = torch.nan
    logits[3, 3] = torch.inf
    tree = LogMassTree(Logits(logits))
    noise = NOISE._replace(seeds=torch.arange(5))
    assert (tree.draw(noise) >= 0).all(1).tolist() == [True, False, False, False, True]
    assert (tree.draw(noise)[1:4] == -1).all()
    assert tree.log_normalizer.isnan().tolist() == [False, True, True, True, False]


def test_draws_do_not_depend_on_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = normal(2, 700)
    tree = LogMassTree(Logits(logits))
    whole = tree.draw(NOISE)
    alone = LogMassTree(Logits(logits[1:]))
    assert torch.equal(alone.draw(NOISE._replace(seeds=NOISE.seeds[1:])), whole[1:])
    monkeypatch.setattr(hierarchy, "_DRAWN_ELEMENTS", 64 * 2 * 3)
    assert torch.equal(tree.draw(NOISE), whole)
    few = NOISE._replace(draws=NOISE.draws[7:9])
    assert torch.equal(tree.draw(few), whole[:, 7:9])


def test_a_head_and_its_logits_give_the_same_draws() -> None:
    rng = np.random.default_rng(0)
    hidden, weight = (
        torch.from_numpy(rng.integers(-2, 3, shape)).float() for shape in ((2, 8), (500, 8))
    )
    through_head = LogMassTree(LMHead(hidden, weight)).draw(NOISE)
    assert torch.equal(through_head, LogMassTree(Logits(hidden @ weight.T)).draw(NOISE))
    drawn = sample(hidden, weight, seed=NOISE.seeds, position=3, method="hierarchical")
    front = sample_logits(hidden @ weight.T, seed=NOISE.seeds, position=3, method="hierarchical")
    assert torch.equal(drawn.token, front.token)
    assert torch.equal(drawn.token, through_head[:, :1])


@pytest.mark.parametrize("fan_out", [1, 0, (64, 1), ()])
def test_a_fan_out_is_at_least_two(fan_out: object) -> None:
    with pytest.raises(ValueError, match="fan_out must be at least 2"):
        LogMassTree(Logits(torch.zeros(1, 9)), cast(int, fan_out))
