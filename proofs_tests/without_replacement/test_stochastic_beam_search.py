"""Stochastic beams to the bit: prefixes, batches, caches, scores, and the whole support."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fsresearch
from fsresearch import noise
from fsresearch.results import BeamSample
from fsresearch.sources import LMHead, Logits
from fsresearch.transforms import Transform
from fsresearch.truncation import Filters
from fsresearch.without_replacement.decoding import Rule, chunk_log_masses, row_log_mass
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search
from proofs_tests.without_replacement.searches import (
    DEPTH,
    EOS,
    RULES,
    VOCAB,
    assert_same,
    search,
)
from proofs_tests.without_replacement.trees import (
    hash_model,
    hash_step,
    hashed_logits,
    ragged,
)

INF = torch.inf


def first_beams(drawn: BeamSample, k: int) -> BeamSample:
    """Return the first k of a wider sample, as a search of width k would have returned them."""
    cut = drawn._replace(
        **{
            name: value[..., :k]
            for name, value in drawn._asdict().items()
            if name in ("lengths", "log_probs", "model_log_probs", "keys", "finished")
        }
    )
    longest = int(cut.lengths.max())
    return cut._replace(
        sequences=drawn.sequences[:, :k, :longest],
        backpointers=drawn.backpointers[:longest, :, :k],
        tokens=drawn.tokens[:longest, :, :k],
        num_valid=drawn.num_valid.clamp(max=k),
        kappa=drawn.keys[:, k] if k < drawn.keys.shape[1] else drawn.kappa,
    )


@pytest.mark.parametrize("rule", RULES)
def test_k_sequences_are_a_prefix_of_more(rule: dict[str, Any]) -> None:
    """Bitwise, with kappa the next key, and whether or not kappa is asked for."""
    wide = search(9, **rule)
    for k in (1, 2, 5, 8):
        assert_same(search(k, **rule), first_beams(wide, k))
    assert_same(search(5, kappa=False, **rule), search(5, **rule)._replace(kappa=None))


@pytest.mark.parametrize("rule", RULES)
def test_a_row_does_not_depend_on_its_batch(rule: dict[str, Any]) -> None:
    seeds = torch.tensor([4, -8, 15])
    together = search(4, seed=seeds, **rule)
    for row in range(3):
        mine = {
            name: value[row : row + 1]
            if isinstance(value, Tensor) and value.shape[:1] == (3,)
            else value
            for name, value in rule.items()
        }
        alone = search(4, rows=1, seed=seeds[row : row + 1], **mine)
        longest = int(alone.lengths.max())
        assert alone.sequences.equal(together.sequences[row : row + 1, :, :longest])
        assert (together.sequences[row, :, longest:] == -1).all()
        steps = len(alone.tokens)
        assert alone.tokens.equal(together.tokens[:steps, row : row + 1])
        assert alone.backpointers.equal(together.backpointers[:steps, row : row + 1])
        assert (together.tokens[steps:, row] == -1).all()
        for name in ("lengths", "log_probs", "model_log_probs", "keys", "finished"):
            assert getattr(alone, name).equal(getattr(together, name)[row : row + 1])


def test_a_large_vocabulary_is_cut_in_no_way_that_shows() -> None:
    """Tiles are narrower in larger batches; keys and scores agree to the bit all the same."""
    vocab, seeds = 50_001, torch.arange(48)
    table = torch.randn(3, vocab, generator=torch.Generator().manual_seed(6)) * 3

    def model(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        return table[prefixes.shape[1] % 3].expand(len(prefixes), vocab), state

    assert Logits(table[:1]).width != Logits(table[:1].expand(48 * 3, -1)).width
    together, alone = (
        stochastic_beam_search(model, None, 2, 3, 0, rows=len(some), seed=some, temperature=0.9)
        for some in (seeds, seeds[:1])
    )
    for name in ("sequences", "keys", "log_probs", "model_log_probs", "kappa"):
        assert getattr(alone, name)[0].equal(getattr(together, name)[0]), name


@pytest.mark.parametrize("width", [1, 1500, 3000, 5000, 8192])
def test_masses_do_not_depend_on_the_width_of_tiles(width: int) -> None:
    logits = torch.randn(500, 9001, generator=torch.Generator().manual_seed(8)) * 3
    rule = Rule(1.0, None, 0, Filters(), ())

    class Cut(Logits):
        @property
        def width(self) -> int:
            return width

    tiles = rule.tiles(Cut(logits), Transform(), 500)
    masses = torch.cat([chunk_log_masses(tile.logits) for tile, _ in tiles], 1)
    assert masses.equal(chunk_log_masses(logits))


def test_a_later_end_changes_no_finished_search() -> None:
    """Once every beam has ended, a larger max_length is never used."""
    model = ragged()
    short, long = (
        stochastic_beam_search(model.step, None, 2, depth, 2, rows=500, seed=2) for depth in (3, 4)
    )
    done = short.finished.all(1)
    assert 0 < done.sum() < 500
    assert short.sequences[done].equal(long.sequences[done, :, : short.sequences.shape[2]])
    assert short.keys[done].equal(long.keys[done])


@pytest.mark.parametrize("rule", RULES)
def test_a_cache_reordered_by_parents_holds_the_prefixes(rule: dict[str, Any]) -> None:
    """A cache that hashes its prefix token by token gives what the prefixes themselves do."""

    def cached(prefixes: Tensor, parents: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        codes = codes.index_select(0, parents)
        if prefixes.shape[1]:
            codes = hash_step(codes, prefixes[:, -1])
        return hashed_logits(codes, VOCAB), codes

    start = torch.zeros(3, dtype=torch.int64)
    drawn = stochastic_beam_search(cached, start, 6, DEPTH, EOS, rows=3, seed=9, **rule)
    assert_same(drawn, search(6, **rule))


def test_control_a_cache_that_is_not_reordered_is_found_out() -> None:
    def stale(prefixes: Tensor, parents: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        if len(codes) == len(prefixes):
            parents = torch.arange(len(codes))
        codes = codes.index_select(0, parents)
        if prefixes.shape[1]:
            codes = hash_step(codes, prefixes[:, -1])
        return hashed_logits(codes, VOCAB), codes

    start = torch.zeros(3, dtype=torch.int64)
    drawn = stochastic_beam_search(stale, start, 6, DEPTH, EOS, rows=3, seed=9)
    assert not drawn.sequences.equal(search(6).sequences)


@pytest.mark.parametrize("sort", [False, True])
def test_backpointers_spell_the_sequences(sort: bool) -> None:
    drawn = search(8)
    if sort:
        drawn = drawn.sort_by_log_prob()
        assert (drawn.log_probs.diff(dim=1) <= 0).all()
    for row in range(3):
        for beam in range(8):
            place, spelt = beam, []
            for t in reversed(range(len(drawn.tokens))):
                spelt.append(int(drawn.tokens[t, row, place]))
                place = int(drawn.backpointers[t, row, place])
            spelt = [token for token in reversed(spelt) if token >= 0]
            length = int(drawn.lengths[row, beam])
            assert spelt == drawn.sequences[row, beam, :length].tolist()
            assert (drawn.sequences[row, beam, length:] == -1).all()


def allowed(logits: Tensor, rule: dict[str, Any], row: int, t: int) -> Tensor:
    """Return the logits [V] that a rule samples at a step, by hand."""
    value = logits.double()
    if "mask" in rule:
        value = value.masked_fill(~rule["mask"][row], -INF)
    if t + 1 < rule.get("min_length", 0):
        value[EOS] = -INF
    temperature = torch.as_tensor(rule.get("temperature", 1.0)).expand(3)[row]
    value = value / temperature.double()
    p = value.softmax(0)
    keep = torch.ones(len(value), dtype=torch.bool)
    if "top_k" in rule:
        keep &= value >= value.topk(rule["top_k"]).values[-1]
    if "min_p" in rule:
        keep &= p >= rule["min_p"] * p.max()
    if "top_p" in rule:
        order = p.argsort(descending=True, stable=True)
        before = p[order].cumsum(0) - p[order]
        keep[order] &= before < rule["top_p"][row].double()
    return value.masked_fill(~keep, -INF)


@pytest.mark.parametrize("rule", RULES)
def test_log_probs_are_those_of_the_sequences(rule: dict[str, Any]) -> None:
    """Scored again one by one, in float64; the model's own at temperature 1 and without filters."""
    drawn = search(6, **rule)
    model = hash_model(VOCAB)
    for row in range(3):
        for beam in range(6):
            sequence = drawn.sequences[row, beam, : int(drawn.lengths[row, beam])]
            ruled, plain = 0.0, 0.0
            for t, token in enumerate(sequence.tolist()):
                logits = model(sequence[None, :t], torch.zeros(1), None)[0][0]
                ruled += float(allowed(logits, rule, row, t).log_softmax(0)[token])
                plain += float(logits.double().log_softmax(0)[token])
            assert float(drawn.log_probs[row, beam]) == pytest.approx(ruled, abs=1e-5)
            assert float(drawn.model_log_probs[row, beam]) == pytest.approx(plain, abs=1e-5)
            assert bool(drawn.finished[row, beam]) == (sequence[-1] == EOS)
            assert len(sequence) >= min(rule.get("min_length", 1), DEPTH)


def test_one_beam_is_an_ordinary_sample() -> None:
    """The tokens of sample_logits at the positions of the steps, bitwise."""
    seeds = torch.tensor([3, 1, 4, 1 << 40])
    drawn = search(1, rows=4, seed=seeds, position=100, role=2, temperature=0.8, eos_id=None)
    model, prefixes = hash_model(VOCAB), torch.empty(4, 0, dtype=torch.int64)
    for t in range(DEPTH):
        logits, _ = model(prefixes, torch.arange(4), None)
        token = fsresearch.sample_logits(
            logits, seed=seeds, position=100 + t, role=2, temperature=0.8
        ).token
        prefixes = torch.cat([prefixes, token], 1)
    assert drawn.sequences[:, 0].equal(prefixes)


@pytest.mark.parametrize("root", ["gumbel", "zero"])
def test_the_best_sequence_has_the_key_of_the_root(root: str) -> None:
    """To the bit, through every step; keys decrease."""
    seeds = torch.arange(50)
    drawn = search(5, rows=50, seed=seeds, root=root, position=6)
    unit = torch.zeros(1, dtype=torch.int64)
    high, _, low, _ = noise.words(seeds, unit, kind=noise.NODE, position=6)
    key = noise.gumbel_from_bits(high, low)[:, 0] if root == "gumbel" else torch.zeros(50).double()
    assert drawn.keys[:, 0].equal(key)
    assert (drawn.keys.diff(dim=1) < 0).all()


def test_as_many_beams_as_sequences_list_them_all() -> None:
    """Every one of 15 once, kappa is -inf, and the rest is marked as missing."""
    model = ragged()
    drawn = stochastic_beam_search(model.step, None, 20, 4, 2, rows=30, seed=1)
    assert (drawn.num_valid == 15).all()
    leaves = model.numbers(drawn.sequences[:, :15]).sort(1).values
    assert leaves.equal(torch.arange(15).expand(30, -1))
    assert drawn.log_probs.logsumexp(1).abs().max() < 1e-6
    assert drawn.kappa is not None
    assert (drawn.kappa == -INF).all()
    for missing in (drawn.keys, drawn.log_probs, drawn.model_log_probs):
        assert (missing[:, 15:] == -INF).all()
    assert (drawn.sequences[:, 15:] == -1).all()
    assert (drawn.lengths[:, 15:] == 0).all()
    assert not drawn.finished[:, 15:].any()
    assert not drawn.keys.isnan().any()
    exact = stochastic_beam_search(model.step, None, 15, 4, 2, rows=30, seed=1)
    assert exact.sequences.equal(drawn.sequences[:, :15])
    with pytest.raises(ValueError, match=r"^num_beams must be at most .* got 20 with 15 in row 0$"):
        stochastic_beam_search(model.step, None, 20, 4, 2, check=True)


def test_an_lm_head_is_never_held_as_logits() -> None:
    """Exact products through a head of several tiles give what its logits give."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randint(-8, 9, (30_000, 4), generator=generator) / 4
    transform = Transform(softcap=30.0)

    def hidden(prefixes: Tensor) -> Tensor:
        tokens = torch.cat([torch.zeros(len(prefixes), 1).long(), prefixes], 1)
        return weight[tokens[:, -1]] + weight[tokens.sum(1) % 97]

    def head(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[LMHead, Any]:
        return LMHead(hidden(prefixes), weight, transform, vocab_size=29_000), state

    def logits(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Logits, Any]:
        raw = hidden(prefixes) @ weight.T
        return Logits(raw, transform, vocab_size=29_000), state

    rules: list[dict[str, Any]] = [{}, {"temperature": 0.5, "top_k": 100}]
    for options in rules:
        drawn, same = (
            stochastic_beam_search(step, None, 7, 5, 3, rows=2, seed=8, **options)
            for step in (head, logits)
        )
        assert_same(drawn, same)


@pytest.mark.parametrize("size", [1, 3, 300, 1024, 1025, 5000])
def test_row_masses_do_not_depend_on_the_other_rows(size: int) -> None:
    logits = torch.randn(40, size, generator=torch.Generator().manual_seed(size)) * 5
    together = row_log_mass(logits)
    assert together.equal(torch.cat([row_log_mass(row[None]) for row in logits]))
    torch.testing.assert_close(together, logits.double().logsumexp(1), rtol=1e-13, atol=1e-13)


def test_stop_makes_leaves_of_prefixes() -> None:
    """The law is that of the tree cut there; several ends of sequence are accepted."""

    def repeated(prefixes: Tensor) -> Tensor:
        if prefixes.shape[1] < 2:
            return torch.zeros(len(prefixes), dtype=torch.bool)
        return prefixes[:, -1] % 3 == prefixes[:, -2] % 3

    drawn = search(6, eos_id=[EOS, 7], stop=repeated)
    for row in range(3):
        for beam in range(6):
            tokens = drawn.sequences[row, beam, : int(drawn.lengths[row, beam])].tolist()
            ends = [
                t in (EOS, 7) or (i > 0 and t % 3 == tokens[i - 1] % 3)
                for i, t in enumerate(tokens)
            ]
            assert not any(ends[:-1])
            assert bool(drawn.finished[row, beam]) == ends[-1]
            assert ends[-1] or len(tokens) == DEPTH
    flattened = [tuple(s) for s in drawn.sequences[0].tolist()]
    assert len(set(flattened)) == 6


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES)
def test_a_gpu_searches_as_the_cpu_does(rule: dict[str, Any]) -> None:
    """The same sequences, and there too k are a prefix of more, to the bit."""

    def step(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        codes = torch.zeros(len(prefixes), dtype=torch.int64, device=prefixes.device)
        for tokens in prefixes.unbind(1):
            codes = hash_step(codes, tokens)
        return hashed_logits(codes, VOCAB), state

    there: dict[str, Any] = {
        name: value.cuda() if isinstance(value, Tensor) else value for name, value in rule.items()
    }
    seeds = torch.tensor([4, -8, 15])
    wide, narrow = (
        stochastic_beam_search(step, None, k, DEPTH, EOS, rows=3, seed=seeds.cuda(), **there)
        for k in (9, 5)
    )
    assert_same(narrow, first_beams(wide, 5))
    assert narrow.sequences.cpu().equal(search(5, seed=seeds, **rule).sequences)
