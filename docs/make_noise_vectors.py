"""Write noise_vectors.json from the NumPy specification: run it after a new noise version."""

import json
from pathlib import Path

import noise_reference as reference
import numpy as np

HERE = Path(__file__).parent
KINDS = "LEAF", "GROUP", "COIN", "SEED", "REFINE", "NODE"
SEEDS = 0, 1, -1, 2**40 + 1, 2**63 - 1, -(2**63)
PLACES = (0, 0, 0), (1, 2**32 - 1, 4), (2**32 - 1, 2**32, 31), (7, 2**56 - 1, 1)
TOKENS = 0, 1, 15, 16, 17, 63, 64, 151_935, 2**31 - 1


def vectors() -> dict[str, object]:
    """Return the known answers: words of every kind, leaf and group Gumbels, derived seeds."""
    words, leaves, groups = [], [], []
    for number, seed in enumerate(SEEDS):
        for kind, name in enumerate(KINDS):
            place = PLACES[(number + kind) % len(PLACES)]
            unit = (0, 1, 1000, 2**32 - 1)[(number * 5 + kind) % 4]
            drawn = reference.words(seed, unit, place[0], place[1], kind, place[2])
            words.append(address(seed, place, unit=unit, kind=name) | {"words": as_hex(drawn)})
    for number, token in enumerate((*TOKENS, first_refined(seed=0))):
        seed, place = SEEDS[number % len(SEEDS)], PLACES[number % len(PLACES)]
        if number == len(TOKENS):
            seed, place = 0, PLACES[0]
        value = reference.gumbel(seed, np.array(token), *place)
        leaves.append(address(seed, place, token=token) | {"gumbel": rounded(value)})
    for number, group in enumerate((0, 1, 2374, 2**26 - 1)):
        place = PLACES[number]
        word, _, more, _ = reference.words(5, group, place[0], place[1], reference.GROUP, place[2])
        value = reference.gumbel_from_bits(float(word), (float(more) + 0.5) / 2**32)
        groups.append(address(5, place, group=group) | {"gumbel": rounded(value)})
    seeds = [{"seed": seed, "rows": derived(seed, 3)} for seed in SEEDS]
    return {"version": 1, "words": words, "leaves": leaves, "groups": groups, "seeds": seeds}


def address(seed: int, place: tuple[int, int, int], **unit: int | str) -> dict[str, object]:
    """Name the parts of an address."""
    return {"seed": seed, "draw": place[0], "position": place[1], "role": place[2], **unit}


def rounded(value: float) -> float:
    """Keep 12 digits, which every platform's logarithm agrees on."""
    return float(f"{value:.12g}")


def as_hex(drawn: tuple[np.ndarray, ...]) -> list[str]:
    """Write words as eight hexadecimal digits."""
    return [f"{int(word):08x}" for word in drawn]


def first_refined(seed: int) -> int:
    """Find the first token whose word is below the threshold of refinement."""
    units = np.arange(1 << 18)
    by_lane = np.stack(reference.words(seed, units))
    tokens = units // 16 * 64 + units % 16 + 16 * np.arange(4)[:, None]
    return int(tokens[by_lane < reference.REFINE_BELOW].min())


def derived(seed: int, rows: int) -> list[int]:
    """Derive the rows' seeds, signed, from a scalar one."""
    low, high, _, _ = reference.words(seed, np.arange(rows), kind=reference.SEED)
    return [int(x) for x in (high << np.uint64(32) | low).astype(np.int64)]


def rendered() -> str:
    """Lay the vectors out with one vector a line."""
    blocks = []
    for name, value in vectors().items():
        rows = ",\n    ".join(map(json.dumps, value)) if isinstance(value, list) else None
        blocks.append(f'  "{name}": ' + (f"[\n    {rows}\n  ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    (HERE / "noise_vectors.json").write_text(rendered())
