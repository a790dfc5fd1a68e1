"""The report as one HTML page: tables, and plots as inline SVG, in light and in dark.

Source: the dictionary of Report.as_dict, so that a page can be made of saved JSON as well.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from scipy import stats

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6575; --line: #d5dae2; --page: #fff;
  --card: #f6f8fa; --good: #1a7f47; --bad: #c0262d; --open: #8a6100; --mark: #2459a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #9aa5b5; --line: #384252;
  --page: #14181f; --card: #1c222c; --good: #5fce8f; --bad: #ff7b7f; --open: #e3b341;
  --mark: #7fb0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p.soft, figcaption { color: var(--soft); }
.failed { color: var(--bad); } .passed { color: var(--good); } .open { color: var(--open); }
.na { color: var(--soft); }
section.fault { border-left: 4px solid var(--bad); background: var(--card); padding: 0.5rem 1rem;
  margin: 0.75rem 0; }
details { border-top: 1px solid var(--line); padding: 0.35rem 0; }
summary { cursor: pointer; display: flex; flex-wrap: wrap; gap: 0 0.75rem; }
summary b { font-weight: 600; flex: 1 1 13rem; } summary span { flex: 0 0 7rem; }
summary i { font-style: normal; color: var(--soft); flex: 3 1 16rem; }
dl { display: grid; grid-template-columns: minmax(6rem, 9rem) 1fr; gap: 0.15rem 0.75rem; }
dt { color: var(--soft); } dd { margin: 0; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; display: block; max-width: 40rem; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg text.soft { fill: var(--soft); }
svg .axis { stroke: var(--line); } svg .one { stroke: var(--soft); stroke-dasharray: 4 4; }
svg .band { stroke: var(--mark); stroke-width: 2; } svg .dot { fill: var(--mark); }
svg .good { fill: var(--good); } svg .bad { fill: var(--bad); }
svg .bad-band { stroke: var(--bad); stroke-width: 2; }
"""
_CLASSES = {"passed": "passed", "failed": "failed", "not decided": "open", "not applicable": "na"}
_SIGMA = 5.7
_WIDTH, _ROW = 480, 22


def page(report: dict[str, Any], summary: str) -> str:
    """Return the page of a report.

    >>> empty = {"sampler": "mine", "about": "", "passed": True, "findings": [], "features": []}
    >>> page(empty, "nothing was asked").startswith("<!doctype html>")
    True
    """
    name = escape(report["sampler"])
    failed = [finding for finding in report["findings"] if finding["status"] == "failed"]
    head = (
        "no check failed" if not failed else f"{len(failed)} check{'s' * (len(failed) > 1)} failed"
    )
    tone = "failed" if failed else "passed"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{name}: {head}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{name}: <span class='{tone}'>{head}</span></h1>",
        f"<p>{escape(summary)}.</p><p class='soft'>{escape(report['about'])}</p>",
        *(_fault(finding) for finding in failed),
        *_plots(report["findings"]),
        "<h2>All checks</h2>",
        *(_details(finding) for finding in report["findings"]),
        "<h2>What the sampler offers and promises</h2>",
        f"<p>{escape(', '.join(report['features']) or 'logits in, tokens out')}</p></body></html>",
    ]
    return "\n".join(part for part in parts if part)


def _fault(finding: dict[str, Any]) -> str:
    name, sentence = escape(finding["check"]), escape(finding["sentence"])
    return f"<section class='fault'><b>{name}</b>: {sentence}</section>"


def _details(finding: dict[str, Any]) -> str:
    """Return one check as a line that opens."""
    shown = {
        "null hypothesis": finding["null_hypothesis"],
        "statistic": finding["statistic"],
        "false-fail rate": f"{finding['false_fail_rate']:.1g}",
        "must not miss": f"{finding['alternative']} (missed with probability at most "
        f"{finding['false_pass_rate']:.0e})",
        "draws": f"{finding['draws']:,} in {finding['seconds']:.1f} s",
        "smallest p": f"{min(finding['p_values'].values()):.2g}" if finding["p_values"] else "",
    }
    rows = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in shown.items() if v)
    return (
        f"<details><summary><b>{escape(finding['check'])}</b>"
        f"<span class='{_CLASSES[finding['status']]}'>{finding['status']}</span>"
        f"<i>{escape(finding['said'])}</i></summary><dl>{rows}</dl></details>"
    )


def _plots(findings: list[dict[str, Any]]) -> list[str]:
    """Return the plots that there is data for."""
    decades = [(f["check"], d) for f in findings for d in f["data"].get("decades", [])]
    pairs = [(f["check"], d) for f in findings for d in f["data"].get("pairs", [])]
    cells = [(f["check"], d) for f in findings for d in f["data"].get("matrix", [])]
    made = []
    if decades:
        lines = [
            (f"{check.partition('/')[2]}, {d['decade']}", d["hits"], d["expected"])
            for check, d in decades
        ]
        made += [
            "<h2>Observed over expected, by probability of a token</h2>",
            _ratios(lines),
        ]
    if pairs:
        lines = [(d["name"], d["equal"], d["pairs"] * d["rate"]) for _, d in pairs]
        made += ["<h2>Equal pairs over expected, of draws that share nothing</h2>", _ratios(lines)]
    if cells:
        made += ["<h2>Tokens that stay, by what was changed</h2>", _matrix(cells)]
    return made


def _ratios(lines: list[tuple[str, int, float]]) -> str:
    """Plot hits over expectation, 0 to 2, with the interval that the hits allow at 5.7 sigma."""
    left, right, height = 140, _WIDTH - 88, _ROW * len(lines) + 40
    alpha = 2 * stats.norm.sf(_SIGMA)

    def x(ratio: float) -> float:
        return left + (right - left) * min(max(ratio, 0.0), 2.0) / 2

    body = [f"<line class='one' x1='{x(1)}' x2='{x(1)}' y1='8' y2='{height - 26}'/>"]
    for number, (name, hits, expected) in enumerate(lines):
        y = _ROW * number + 20
        low = stats.gamma.ppf(alpha / 2, hits) / expected if hits else 0.0
        high = stats.gamma.isf(alpha / 2, hits + 1) / expected
        tone = "band" if low <= 1 <= high else "bad-band"
        dot = "dot" if tone == "band" else "bad"
        ratio = hits / expected
        body.append(
            f"<text x='{left - 8}' y='{y + 4}' text-anchor='end'>{escape(name)}</text>"
            f"<line class='axis' x1='{left}' x2='{right}' y1='{y}' y2='{y}'/>"
            f"<line class='{tone}' x1='{x(low):.1f}' x2='{x(high):.1f}' y1='{y}' y2='{y}'/>"
            f"<circle class='{dot}' cx='{x(ratio):.1f}' cy='{y}' r='3.5'/>"
            f"<text class='soft' x='{right + 8}' y='{y + 4}'>{ratio:.3f} ({_short(hits)})</text>"
        )
    for tick in (0, 1, 2):
        label = f"{tick}" if tick < 2 else "2 or more"
        body.append(
            f"<text class='soft' x='{x(tick)}' y='{height - 6}' text-anchor='middle'>{label}</text>"
        )
    return _figure(
        body,
        height,
        f"Dots: hits over expectation, with the number of hits. Bars: what the hits allow at "
        f"{_SIGMA} sigma; an exact sampler's bars cover 1.",
    )


def _matrix(cells: list[tuple[str, dict[str, Any]]]) -> str:
    """Draw a bar for every variant of every invariance check."""
    left, right, height = 250, _WIDTH - 56, _ROW * len(cells) + 16
    body = []
    for number, (check, cell) in enumerate(cells):
        y = _ROW * number + 20
        share = cell["equal"] / max(cell["of"], 1)
        tone = "good" if cell["equal"] == cell["of"] else "bad"
        name = f"{check.partition('/')[2]}: {cell['name']}"
        body.append(
            f"<text x='{left - 8}' y='{y + 4}' text-anchor='end'>{escape(name)}</text>"
            f"<rect class='{tone}' x='{left}' y='{y - 6}' width='{(right - left) * share:.1f}' "
            f"height='12'/><text class='soft' x='{right + 8}' y='{y + 4}'>{_percent(share)}</text>"
        )
    return _figure(body, height, "Share of tokens that are the same as without the change.")


def _figure(body: list[str], height: int, caption: str) -> str:
    return (
        f"<figure><svg viewBox='0 0 {_WIDTH} {height}' role='img'><title>{escape(caption)}</title>"
        f"{''.join(body)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _short(count: int) -> str:
    """Write a count in at most four characters or so."""
    if count < 10_000:
        return str(count)
    power = int(math.log10(count)) // 3
    return f"{count / 1000**power:.0f}{' kMG'[power]}"


def _percent(share: float) -> str:
    return "100%" if share == 1 else f"{min(share, 0.9999):.2%}"
