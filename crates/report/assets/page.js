// A closer look at charts of many points: uPlot takes the place of the drawing, with a range that can
// be dragged open. Without this script the page is whole: it has the drawings and the numbers.
(function () {
  "use strict";

  const steps = { Us: [[1e6, "s"], [1e3, "ms"], [1, "us"], [1e-3, "ns"]], S: [[1, "s"], [1e-3, "ms"], [1e-6, "us"]] };

  function word(unit, v) {
    if (v === null || v === undefined) return "";
    const digits = (x) => String(Number(x.toPrecision(3)));
    if (v === 0) return "0";
    if (steps[unit]) {
      const found = steps[unit].find((s) => Math.abs(v) >= s[0]) || steps[unit][steps[unit].length - 1];
      return digits(v / found[0]) + " " + found[1];
    }
    if (unit === "Share") return digits(v * 100) + " %";
    return digits(v);
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dashes = [null, null, [8, 3], [2.5, 2.5], [9, 3, 2, 3], [5, 2], [2, 4], [12, 4]];

  function plot(data, room, height) {
    const tables = data.series.map((s) => {
      // uPlot wants rising x; of equal ones the last counts.
      const order = s.x.map((_, i) => i).filter((i) => s.x[i] !== null).sort((a, b) => s.x[a] - s.x[b] || a - b);
      const x = [], y = [];
      for (const i of order) {
        if (x.length && x[x.length - 1] === s.x[i]) y[y.length - 1] = s.y[i];
        else { x.push(s.x[i]); y.push(s.y[i]); }
      }
      return [x, y];
    });
    const axis = (of) => ({
      stroke: css("--ink"),
      grid: { stroke: css("--grid"), width: 1 },
      ticks: { stroke: css("--grid"), width: 1 },
      label: of.label,
      labelSize: 18,
      size: 46,
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
      values: (_, all) => all.map((v) => word(of.unit, v)),
    });
    const scale = (of, x) => ({
      time: false,
      distr: of.log ? 3 : 1,
      range: x ? (u, lo, hi) => [lo ?? of.min, hi ?? of.max] : [of.min, of.max],
    });
    return new uPlot({
      width: room.clientWidth,
      height,
      scales: { x: scale(data.x, true), y: scale(data.y, false) },
      axes: [axis(data.x), Object.assign(axis(data.y), { size: 62 })],
      cursor: { drag: { x: true, y: false } },
      series: [{ label: data.x.label, value: (_, v) => word(data.x.unit, v) }].concat(data.series.map((s) => ({
        label: s.label,
        stroke: css("--s" + s.slot),
        width: s.faint ? 1 : 2,
        alpha: s.simulated && !s.dots ? 0.45 : 1,
        dash: dashes[s.slot],
        paths: s.dots ? () => null : s.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: s.dots > 0, size: Math.max(s.dots, 3), fill: css(s.simulated ? "--panel" : "--s" + s.slot) },
        spanGaps: s.step,
        value: (_, v) => word(data.y.unit, v),
      }))),
    }, uPlot.join(tables, tables.map((t) => t.map(() => 1))), room);
  }

  for (const store of document.querySelectorAll(".zoom-data")) {
    const figure = store.closest("figure");
    const button = document.createElement("button");
    let room = null, chart = null, height = 0;
    const name = figure.querySelector("h3").textContent;
    const show = () => {
      // Larger than the drawing that it takes the place of.
      const drawn = [...figure.querySelectorAll("svg.chart")].map((svg) => svg.getBoundingClientRect().height);
      height = Math.max(340, Math.round(1.3 * Math.max(...drawn)));
      room = document.createElement("div");
      room.className = "zoom-room";
      button.before(room);
      figure.classList.add("zoomed");
      chart = plot(JSON.parse(store.textContent), room, height);
    };
    const hide = () => {
      chart.destroy();
      room.remove();
      room = chart = null;
      figure.classList.remove("zoomed");
    };
    const say = () => {
      button.textContent = chart ? "Back to the drawing" : "Look closer";
      button.setAttribute("aria-label", button.textContent + ": " + name);
      button.setAttribute("aria-pressed", String(Boolean(chart)));
      button.title = chart ? "" : "Drag over the chart to open a range, double-click to close it";
    };
    button.type = "button";
    button.className = "zoom";
    button.addEventListener("click", () => { if (chart) hide(); else show(); say(); });
    say();
    store.before(button);
    const again = () => { if (chart) { hide(); show(); } };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    addEventListener("resize", () => { if (chart) chart.setSize({ width: room.clientWidth, height }); });
  }
})();
