"""Pictures of results, drawn by matplotlib; colours are those of the HTML report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Rows of axes in a figure.
_MOST_CELLS = 8
# Samples that have to lie beyond a point, as for a quantile.
_BEYOND = 10
_QUANTILES = (("p50", 0.5), ("p90", 0.1), ("p99", 0.01), ("p999", 0.001), ("p9999", 0.0001))
_MARKERS = "os^Dv<>P"


def _subplots(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure with axes; in notebooks it shows itself."""
    need("matplotlib", "plot")
    plots: Any = need("matplotlib.pyplot", "plot")
    size = (5.2 * columns, 3.4 * rows)
    return plots.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)


def _looks(policies: list[str], baseline: str) -> dict[str, dict[str, Any]]:
    """Colour and marker of each policy."""
    colours = _native.colours(policies, baseline)
    pairs = enumerate(zip(policies, colours, strict=True))
    return {p: {"color": c, "marker": _MARKERS[i % len(_MARKERS)]} for i, (p, c) in pairs}


def _pick(name: str, known: Iterable[str], wanted: str | None) -> str:
    """What is wanted, or the first there is."""
    names = list(dict.fromkeys(known))
    if wanted is None and names:
        return names[0]
    if wanted not in names:
        raise ValueError(f"no {name} {wanted!r}; there is {', '.join(names) or 'none'}")
    return wanted


def _words(place: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in place.items())


def _ends(value: float, interval: list[float] | None) -> tuple[list[float], list[float]]:
    """An interval as matplotlib takes it: how far below the value, and how far above."""
    low, high = interval or (value, value)
    return [max(0.0, value - low)], [max(0.0, high - value)]


def result(document: dict[str, Any], probe: str | None, metric: str) -> Figure:
    """The figure of `Result.plot`."""
    own = [s for s in document["series"] if s["metric"] == metric]
    if not own:
        known = sorted({s["metric"] for s in document["series"]})
        raise ValueError(f"no metric {metric!r}; there is {', '.join(known)}")
    probe = _pick(f"probe with {metric}", (s["probe"] for s in own), probe)
    own = [s for s in own if s["probe"] == probe]
    cells: dict[str, list[dict[str, Any]]] = {}
    for series in own:
        cells.setdefault(_words(series["params"]), []).append(series)
    if len(cells) > _MOST_CELLS:
        raise ValueError(
            f"{len(cells)} cells of a matrix are more than the {_MOST_CELLS} that fit a figure; "
            "run fewer, or plot a sweep's result"
        )
    looks = _looks(document["policies"], document["baseline"])
    latency = metric == "latency"
    figure, axes = _subplots(len(cells), 2 if latency else 1)
    for row, (words, series) in zip(axes, cells.items(), strict=True):
        if latency:
            _tails(row[0], series, looks)
            _quantiles(row[1], series, looks)
        else:
            _values(row[0], series, looks)
        row[0].set_title(words, loc="left", fontsize="medium")
    figure.suptitle(f"{document['scenario']}: {probe} {metric}")
    return figure


def _tails(axes: Axes, series: list[dict[str, Any]], looks: dict[str, dict[str, Any]]) -> None:
    """The share of samples that are later than a latency."""
    for one in series:
        detail = one.get("detail")
        look = looks[one["policy"]]
        if detail is None or not one["count"]:
            continue
        bins = detail["distribution"]
        total = left = sum(bins["count"])
        x, y = [one["min"]], [1.0]
        for edge, count in zip(bins["le_us"], bins["count"], strict=True):
            left -= count
            x.append(edge)
            # Below ten samples it is what happened, and no quantile.
            y.append(max(left, min(_BEYOND, total)) / total)
            if left < _BEYOND:
                break
        axes.step(x, y, where="post", color=look["color"], label=one["policy"])
        at = [(one[name], share) for name, share in _QUANTILES if one[name] is not None]
        axes.plot(
            [us for us, _ in at],
            [share for _, share in at],
            linestyle="none",
            markersize=5,
            **look,
        )
    axes.set(xscale="log", yscale="log", xlabel=f"latency ({series[0]['unit']})")
    axes.set_ylabel("share of samples that are later")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _quantiles(axes: Axes, series: list[dict[str, Any]], looks: dict[str, dict[str, Any]]) -> None:
    """Mean and quantiles with their intervals, side by side."""
    names = ["mean", *(name for name, _ in _QUANTILES)]
    shown = [name for name in names if any(one[name] is not None for one in series)]
    for i, one in enumerate(series):
        shift = (i - (len(series) - 1) / 2) * 0.7 / len(series)
        look = looks[one["policy"]]
        for place, name in enumerate(shown):
            value = one[name]
            if value is None:
                continue
            ends = _ends(value, one[f"{name}_ci95"])
            axes.errorbar([place + shift], [value], ends, capsize=2, ls="none", **look)
    axes.set(yscale="log", ylabel=f"latency ({series[0]['unit']}), 95 % intervals")
    axes.set_xticks(range(len(shown)), [_quantile_words(name) for name in shown])
    axes.grid(axis="y", alpha=0.3)


def _quantile_words(name: str) -> str:
    digits = name.removeprefix("p")
    return name if name == digits or len(digits) <= 2 else f"p{digits[:2]}.{digits[2:]}"


def _values(axes: Axes, series: list[dict[str, Any]], looks: dict[str, dict[str, Any]]) -> None:
    """A number of each policy with its interval."""
    for place, one in enumerate(series):
        if one["value"] is not None:
            ends = _ends(one["value"], one["value_ci95"])
            axes.errorbar([place], [one["value"]], ends, capsize=2, ls="none", **looks[one["policy"]])
    axes.set_xticks(range(len(series)), [one["policy"] for one in series])
    axes.set_xlim(-0.5, len(series) - 0.5)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"{series[0]['metric']} ({series[0]['unit']}), 95 % intervals")
    axes.grid(axis="y", alpha=0.3)


def sweep(
    manifest: dict[str, Any],
    rows: list[dict[str, Any]],
    x: str,
    y: str,
    probe: str | None,
    metric: str,
    where: Mapping[str, object],
) -> Figure:
    """The figure of `SweepResult.plot`."""
    columns = [axis["name"] for axis in manifest["axes"]]
    _pick("axis", columns, x)
    for name in where:
        _pick("axis", columns, name)
    rows = [r for r in rows if r["error"] is None and r["metric"] == metric]
    rows = [r for r in rows if all(r[name] == value for name, value in where.items())]
    if not rows:
        raise ValueError(f"no point has {metric!r} where {_words(where) or 'anything'}")
    probe = _pick(f"probe with {metric}", (r["probe"] for r in rows), probe)
    rows = [r for r in rows if r["probe"] == probe]
    if y not in rows[0]:
        raise ValueError(f"no column {y!r}; help(vcoop.Result.rows) lists them")
    for name in columns:
        values = sorted({r[name] for r in rows}, key=lambda v: (isinstance(v, str), v))
        if name != x and name not in where and len(values) > 1:
            known = ", ".join(str(v) for v in values)
            raise ValueError(f"{name} varies, too: choose one, where={{{name!r}: ...}}, of {known}")
    figure, [[axes]] = _subplots(1, 1)
    for policy, look in _looks(manifest["policies"], manifest["baseline"]).items():
        own = [r for r in rows if r["policy"] == policy and r[y] is not None]
        if not own:
            continue
        own.sort(key=lambda r: r[x])
        places, values = [r[x] for r in own], [r[y] for r in own]
        axes.plot(places, values, label=policy, **look)
        if f"{y}_lo" in own[0]:
            low = [r[y] if r[f"{y}_lo"] is None else r[f"{y}_lo"] for r in own]
            high = [r[y] if r[f"{y}_hi"] is None else r[f"{y}_hi"] for r in own]
            axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
    if metric == "latency":
        axes.set_yscale("log")
    unit = "ratio to the baseline" if y.startswith("ratio") else rows[0]["unit"]
    axes.set(xlabel=x, ylabel=f"{metric} {y} ({unit}), 95 % intervals")
    axes.set_title(", ".join(filter(None, [probe, _words(where)])))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
