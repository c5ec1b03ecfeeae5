/* The curves of a run: one Plotly chart per card, drawn again only when it changed and is in sight.

   All cards of the same x axis share the pointer: a line and the values at that step in each legend. */

import { format } from "./numbers.js";
import { colour } from "./theme.js";
import { CloseLook } from "./zoom.js";

const SERIES = Array.from({ length: 8 }, (_, index) => `series-${index + 1}`);
const REDRAW_MS = 400;
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const touch = matchMedia("(pointer: coarse)");

function translucent(rgb, alpha) {
  return rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

/** What all charts look like in the current theme. */
function baseLayout() {
  const axis = {
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line-strong"), zeroline: false,
    tickfont: { size: 11, color: colour("text-3") }, fixedrange: touch.matches,
  };
  return {
    axis,
    layout: {
      margin: { l: 44, r: 12, t: 6, b: 26 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("text-2") },
      showlegend: false, hovermode: "x", dragmode: touch.matches ? false : "zoom", uirevision: "kept", barmode: "stack",
    },
  };
}

/* A flat curve of 3e-4 stands between 0 and its double: Plotly's own ±1 would show it as 0.  And 1e-6 is not called 1µ. */
function scaleOf(traces, type) {
  let low = Infinity;
  let high = -Infinity;
  for (const { y } of traces) for (const value of y) { low = Math.min(low, value); high = Math.max(high, value); }
  const size = Math.max(Math.abs(low), Math.abs(high));
  const isOdd = size && size !== Infinity && (size < 1e-3 || size >= 1e15);
  const isFlat = type === "linear" && size > 0 && size < 1e300 && high - low <= 1e-9 * size;
  return { exponentformat: isOdd ? "e" : "SI", ...(isFlat ? { range: [0, 2 * low].sort((a, b) => a - b) } : { autorange: true }) };
}

class CurveChart {
  constructor(card, definition, store, options) {
    Object.assign(this, { card, definition, store, options });
    this.plot = card.querySelector(".plot");
    this.cursor = card.querySelector(".cursor");
    const left = Object.entries(definition.curves).map(([key, name]) => ({ key, name, unit: definition.unit }));
    const right = Object.entries(definition.right).map(([key, name]) => ({ key, name, unit: "number", right: true }));
    this.curves = [...left, ...right].map((curve, index) => ({ ...curve, colour: SERIES[index] }));
    this.look = new CloseLook({ url: options.zoomed, keys: this.curves.map((curve) => curve.key), onPoints: () => options.onPoints(this) });
    this.legend();
  }

  /** The finest points there are of what is in sight. */
  seriesOf(key) {
    return this.look.get(key) ?? this.store.get(key);
  }

  legend() {
    const legend = this.card.querySelector(".legend");
    legend.replaceChildren(...this.curves.map((curve) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.color = `var(--${curve.colour})`;
      curve.value = document.createElement("b");
      item.append(mark, curve.name, curve.value);
      curve.item = item;
      return item;
    }));
  }

  /** The values at `step`, or the newest ones. */
  showValues(step = Infinity) {
    const known = this.curves.filter((curve) => this.store.get(curve.key)?.steps.length);
    for (const curve of this.curves) curve.item.hidden = known.length > 0 && !known.includes(curve);
    for (const curve of this.curves) {
      const series = step === Infinity ? this.store.get(curve.key) : this.seriesOf(curve.key);
      const value = series ? (step === Infinity ? series.values.at(-1) : series.at(step)) : null;
      curve.value.textContent = format(value, curve.unit);
    }
  }

  traces() {
    return this.curves.flatMap((curve) => {
      const series = this.seriesOf(curve.key);
      return series?.steps.length ? this.tracesOf(curve, series) : [];
    });
  }

  tracesOf(curve, series) {
    const { steps, values, low, high } = series;
    const ink = colour(curve.colour);
    const yaxis = curve.right ? "y2" : "y";
    const shared = { x: steps, yaxis, type: "scatter", hoverinfo: "skip" };
    const isSparse = this.definition.markers || curve.key.startsWith("eval/");
    const smoothing = isSparse ? 0 : this.options.smoothing;
    const traces = [];
    if (low) {
      const edge = { color: translucent(ink, 0.4), width: 0.75 }; // a spike of one point has no area to fill
      traces.push({ ...shared, y: low, mode: "lines", line: edge });
      traces.push({ ...shared, y: high, mode: "lines", line: edge, fill: "tonexty", fillcolor: translucent(ink, 0.16) });
    } else if (smoothing) {
      traces.push({ ...shared, y: values, mode: "lines", line: { color: translucent(ink, 0.22), width: 1 } });
    }
    const marks = isSparse || steps.length === 1;
    traces.push({
      ...shared, hoverinfo: "none", y: series.smoothed(smoothing), mode: marks ? "lines+markers" : "lines",
      line: { color: ink, width: 1.75, dash: curve.right ? "dot" : "solid" }, marker: { size: 5, color: ink },
    });
    return traces;
  }

  layout(traces) {
    const { layout, axis } = baseLayout();
    const steps = traces.flatMap((trace) => [trace.x[0], trace.x.at(-1)]);
    const isShort = Math.max(...steps) - Math.min(...steps) < 6; // then Plotly would mark halves of a step
    const ticks = isShort ? { dtick: 1 } : { nticks: 6, tickformat: "~s" };
    const share = this.definition.unit === "share";
    const scale = this.options.log ? "log" : "linear";
    const format = { share: ".0%", count: "~s" }[this.definition.unit] ?? "";
    const y = (side) => ({ ...axis, nticks: 5, type: scale, ...scaleOf(traces.filter((trace) => trace.yaxis === side), scale) });
    const yaxis = { ...y("y"), tickformat: format };
    if (share && !this.options.log) Object.assign(yaxis, { rangemode: "tozero" });
    const yaxis2 = { ...y("y2"), overlaying: "y", side: "right", showgrid: false, tickmode: "auto" };
    const hasRight = this.curves.some((curve) => curve.right);
    return {
      ...layout, margin: { ...layout.margin, r: hasRight ? 36 : 12 }, uirevision: scale,
      xaxis: { ...axis, showgrid: false, ...ticks, uirevision: "kept" }, yaxis, ...(hasRight ? { yaxis2 } : {}),
    };
  }

  draw() {
    const traces = this.traces();
    this.card.classList.toggle("has-data", traces.length > 0);
    this.showValues();
    if (!traces.length && !this.drawn) return;
    Plotly.react(this.plot, traces, this.layout(traces), CONFIG);
    if (!this.drawn) {
      this.drawn = true;
      this.plot.on("plotly_hover", ({ xvals }) => this.options.onHover(this, xvals[0]));
      this.plot.on("plotly_unhover", () => this.options.onHover(this, null));
      this.plot.on("plotly_relayout", (changed) => this.zoomed(changed));
    }
  }

  /** The reader dragged over some steps, or double-clicked to see the whole run again. */
  zoomed(changed) {
    const [from, to] = [changed["xaxis.range[0]"], changed["xaxis.range[1]"]];
    if (changed["xaxis.autorange"]) {
      this.look.close();
      this.options.onPoints(this);
    } else if (from != null && this.curves.some((curve) => this.store.get(curve.key)?.low)) {
      this.look.open(from, to);
    }
  }

  /** Draw the shared line at `x`, or hide it. */
  point(x) {
    const axis = this.plot._fullLayout?.xaxis;
    const inside = x != null && axis && x >= axis.range[0] && x <= axis.range[1];
    this.cursor.hidden = !inside;
    if (inside) this.cursor.style.left = `${axis._offset + axis.l2p(x) + parseFloat(getComputedStyle(this.plot).paddingLeft)}px`;
    this.showValues(x == null ? Infinity : Math.round(x));
  }
}

/** Seconds per phase, stacked by step: who waited for whom, and since when. */
class TimeChart {
  constructor(card, phases, seconds) {
    Object.assign(this, { card, phases, seconds, definition: { x: "time" } });
    this.plot = card.querySelector(".plot");
  }

  draw() {
    const steps = [...this.seconds.keys()].filter((step) => this.phases.some((phase) => this.seconds.get(step).has(phase))).sort((a, b) => a - b);
    this.card.classList.toggle("has-data", steps.length > 0);
    this.legend(steps);
    if (!steps.length && !this.drawn) return;
    const { layout, axis } = baseLayout();
    const traces = this.phases.map((phase) => ({
      type: "bar", name: phase, x: steps, y: steps.map((step) => this.seconds.get(step).get(phase) ?? 0),
      marker: { color: colour(`phase-${phase}`) }, hovertemplate: `step %{x} · ${phase} %{y:.2f} s<extra></extra>`,
    }));
    Plotly.react(this.plot, traces, {
      ...layout, hovermode: "closest", bargap: 0.15, xaxis: { ...axis, showgrid: false, nticks: 12 },
      yaxis: { ...axis, nticks: 4, ticksuffix: " s" },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line-strong"), font: { color: colour("text"), size: 12 } },
    }, CONFIG);
    this.drawn = true;
  }

  legend(steps) {
    const sums = this.phases.map((phase) => steps.reduce((sum, step) => sum + (this.seconds.get(step).get(phase) ?? 0), 0));
    const total = sums.reduce((one, other) => one + other, 0);
    this.card.querySelector(".legend").replaceChildren(...this.phases.flatMap((phase, index) => {
      if (!sums[index]) return [];
      const item = document.createElement("span");
      const mark = document.createElement("i");
      const share = document.createElement("b");
      mark.style.color = `var(--phase-${phase})`;
      share.textContent = `${Math.round((100 * sums[index]) / total)}%`;
      item.append(mark, phase, share);
      return item;
    }));
  }

  point() {}
}

export class ChartGrid {
  constructor(root, { charts, phases, zoomed }, store, seconds) {
    this.store = store;
    const onPoints = (chart) => { this.stale.add(chart); this.schedule(); };
    this.options = { smoothing: 0.5, log: false, zoomed, onPoints, onHover: (source, x) => this.hover(source, x) };
    const card = (id) => root.querySelector(`[data-chart="${id}"]`);
    this.curves = charts.map((definition) => new CurveChart(card(definition.id), definition, store, this.options));
    this.charts = [...this.curves];
    this.charts.push(new TimeChart(card("time"), phases, seconds));
    this.stale = new Set(this.charts);
    this.inSight = new Set();
    const sight = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const chart = this.charts.find((one) => one.card === target);
        if (isIntersecting) this.inSight.add(chart); else this.inSight.delete(chart);
      }
      this.schedule();
    }, { rootMargin: "200px" });
    for (const chart of this.charts) sight.observe(chart.card);
    this.sight = sight;
    this.shown = new Set(this.curves.flatMap((chart) => chart.curves.map((curve) => curve.key)));
    document.addEventListener("themechange", () => this.changed());
  }

  /** Cards of parts that this run has, and one for each metric that stands in no card. */
  reveal() {
    for (const { definition, card, curves } of this.curves) {
      if (definition.is_optional && card.hidden) card.hidden = !curves.some((curve) => this.owns(definition, curve.key));
    }
    const others = this.store.keys().filter((key) => !this.shown.has(key)).sort();
    for (const key of others) this.addOther(key);
    if (others.length) this.countOthers();
  }

  /** A curve that another card shows too does not tell that the run has this part. */
  owns(definition, key) {
    return this.store.get(key)?.steps.length && !this.curves.some((one) => !one.definition.is_optional && one.definition !== definition && one.curves.some((curve) => curve.key === key));
  }

  addOther(key) {
    this.shown.add(key);
    const card = document.getElementById("chart-card").content.firstElementChild.cloneNode(true);
    card.querySelector("h2").textContent = key;
    card.dataset.chart = key;
    document.getElementById("other-charts").append(card);
    const x = key.startsWith("sft/") ? "supervised step" : "step";
    const chart = new CurveChart(card, { id: key, title: key, curves: { [key]: "" }, right: {}, unit: "number", markers: false, x }, this.store, this.options);
    this.curves.push(chart);
    this.charts.push(chart);
    this.sight.observe(card);
  }

  countOthers() {
    const box = document.getElementById("other-metrics");
    box.hidden = false;
    document.getElementById("other-metrics-count").textContent = document.getElementById("other-charts").childElementCount;
  }

  /** A metric event, for the charts that are zoomed in. */
  add(seq, step, values) {
    for (const { look } of this.curves) look.add(seq, step, values);
  }

  rewind(fromStep, fromColdStartStep) {
    for (const { look } of this.curves) look.rewind(fromStep, fromColdStartStep);
  }

  set(option, value) {
    this.options[option] = value;
    this.changed();
  }

  changed() {
    this.reveal();
    this.stale = new Set(this.charts);
    this.schedule();
  }

  schedule() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      requestAnimationFrame(() => this.redraw());
    }, this.drawnOnce ? REDRAW_MS : 0);
  }

  redraw() {
    this.drawnOnce = true;
    for (const chart of this.charts) {
      if (!this.stale.has(chart) || !this.inSight.has(chart)) continue;
      this.stale.delete(chart);
      chart.draw();
    }
  }

  hover(source, x) {
    for (const chart of this.charts) if (chart.definition.x === source.definition.x) chart.point(x);
  }
}
