"""Write the tables of the page about the kernels: kernel_tiles.csv and kernel_speed.md.

python docs/make_kernel_tables.py
"""

from __future__ import annotations

import csv
import io
import runpy
import sys
from pathlib import Path

from fsresearch.kernels.matmul.configs import HOPPER, PLAIN

DOCS = Path(__file__).parent
EXPERIMENTS = DOCS.parent / "experiments"


def tiles() -> str:
    """Return the tile tables as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["form", "rows B", "tile, B x V x D", "warps", "stages"])
    for table in (HOPPER, PLAIN):
        first = 1
        for config in table:
            last = "" if config.max_rows >= 1 << 31 else config.max_rows
            shape = f"{config.block_b} x {config.block_v} x {config.block_d}"
            rows = f"{first} to {last}" if last else f"{first} and more"
            writer.writerow([config.form, rows, shape, config.warps, config.stages])
            first = config.max_rows + 1
    return text.getvalue()


def speed() -> str:
    """Return what experiments/results/kernel_speed.csv holds, as Markdown."""
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        table: str = runpy.run_path(str(EXPERIMENTS / "kernel_speed.py"))["table"]()
    finally:
        sys.path.remove(str(EXPERIMENTS))
    return table + "\n"


FILES = {"kernel_tiles.csv": tiles, "kernel_speed.md": speed}

if __name__ == "__main__":
    for name, made in FILES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
