/* One chart of the curves of a run.  Curves that lie upon each other differ by dash and mark, and each can be
   brought forward from the legend. */

import { stepRange, valueAxis } from "./axes.js";
import { format } from "./numbers.js";
import { CONFIG, baseLayout, listenToZoom, touch } from "./plotstyle.js";
import { colour } from "./theme.js";
import { CloseLook } from "./zoom.js";

const DOUBLE_CLICK_MS = 350; // a click waits this long: it may be the first half of a double one, which resets the zoom
const SERIES = Array.from({ length: 8 }, (_, index) => `series-${index + 1}`);
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKS = ["circle", "square", "diamond", "triangle-up", "x"];

function translucent(rgb, alpha) {
  return rgb.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

/** Which trajectories a metric speaks of. */
function purposeOf(key) {
  if (!key.startsWith("eval/")) return "train";
  const way = /_(greedy|sampled|purified|oracle|nop|script)$/.exec(key);
  return way ? `eval-${way[1]}` : "";
}

export class CurveChart {
  constructor(card, definition, store, options) {
    Object.assign(this, { card, definition, store, options });
    this.plot = card.querySelector(".plot");
    this.cursor = card.querySelector(".cursor");
    this.cursor.append(document.createElement("span"));
    const left = Object.entries(definition.curves).map(([key, name]) => ({ key, name, unit: definition.unit }));
    const right = Object.entries(definition.right).map(([key, name]) => ({ key, name, unit: "number", right: true }));
    this.curves = [...left, ...right].map((curve, index) => ({
      ...curve, colour: SERIES[index], dash: DASHES[index % DASHES.length], mark: MARKS[index % MARKS.length], size: Math.max(4, 8 - 1.5 * index),
    }));
    this.look = new CloseLook({ url: options.zoomed, keys: this.curves.map((curve) => curve.key), onPoints: () => options.onPoints(this) });
    this.legend();
  }

  get hasValues() {
    return this.curves.some((curve) => this.store.get(curve.key)?.steps.length);
  }

  /** The finest points there are of what is in sight. */
  seriesOf(key) {
    return this.look.get(key) ?? this.store.get(key);
  }

  legend() {
    this.note = document.createElement("em");
    this.card.querySelector(".legend").replaceChildren(...this.curves.map((curve) => this.legendItem(curve)), this.note);
  }

  legendItem(curve) {
    const item = document.createElement(this.curves.length > 1 ? "button" : "span");
    const mark = document.createElement("i");
    mark.style.color = `var(--${curve.colour})`;
    mark.dataset.dash = curve.dash;
    curve.value = document.createElement("b");
    item.append(mark, curve.name, curve.value);
    curve.item = item;
    if (item.type) this.bringsForward(item, curve);
    return item;
  }

  /** While it is pointed at, and after a click until the next one. */
  bringsForward(item, curve) {
    item.type = "button";
    item.setAttribute("aria-pressed", "false");
    const show = (shown) => { if (this.shown !== shown) { this.shown = shown; this.options.onPoints(this, true); } };
    item.addEventListener("pointerenter", () => show(curve));
    item.addEventListener("pointerleave", () => show(this.pinned));
    item.addEventListener("click", () => {
      this.pinned = this.pinned === curve ? undefined : curve;
      for (const other of this.curves) other.item.setAttribute("aria-pressed", String(other === this.pinned));
      show(this.pinned);
    });
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

  get known() {
    return this.curves.filter((curve) => this.seriesOf(curve.key)?.steps.length);
  }

  /** Steps in sight. */
  stepRange() {
    const ends = this.known.flatMap(({ key }) => [this.seriesOf(key).steps[0], this.seriesOf(key).steps.at(-1)]);
    return this.options.ranges[this.definition.x] ?? (ends.length ? stepRange(ends) : [0, 1]);
  }

  /** The axis of one side, for what is in sight. */
  axisOf(isRight, [from, to]) {
    const curves = this.known.filter((curve) => Boolean(curve.right) === isRight);
    const all = curves.flatMap(({ key }) => {
      const { steps, values, low, high } = this.seriesOf(key);
      return [values, low, high].filter(Boolean).map((list) => ({ list, steps }));
    });
    const seen = all.map(({ list, steps }) => list.filter((_, index) => steps[index] >= from && steps[index] <= to));
    const lists = seen.some((list) => list.length) ? seen : all.map(({ list }) => list);
    return valueAxis(lists, { unit: curves[0]?.unit ?? "number", log: this.options.log });
  }

  traces(axes) {
    return this.known.flatMap((curve) => this.tracesOf(curve, this.seriesOf(curve.key), axes[curve.right ? 1 : 0]));
  }

  tracesOf(curve, series, { axis, zero }) {
    const { steps, values, low, high } = series;
    const isLog = axis.type === "log";
    const place = (list) => (isLog ? list.map((value) => (value > 0 ? value : null)) : list);
    const bound = (list) => (isLog ? list.map((value) => (value > 0 ? value : zero)) : list);
    const ink = colour(curve.colour);
    const opacity = this.shown && this.shown !== curve ? 0.12 : 1;
    const shared = { x: steps, yaxis: curve.right ? "y2" : "y", type: "scatter", hoverinfo: "skip", opacity, meta: curve.key };
    const isSparse = this.definition.markers || curve.key.startsWith("eval/");
    const smoothing = isSparse ? 0 : this.options.smoothing;
    const zeros = isLog ? steps.filter((_, index) => values[index] === 0) : [];
    const traces = [];
    if (zeros.length) {
      const marker = { symbol: "triangle-down-open", size: 6, color: ink };
      traces.push({ ...shared, x: zeros, y: zeros.map(() => zero), mode: "markers", marker, cliponaxis: false });
    }
    if (low) {
      const edge = { color: translucent(ink, 0.4), width: 0.75 }; // a spike of one point has no area to fill
      traces.push({ ...shared, y: bound(low), mode: "lines", line: edge });
      traces.push({ ...shared, y: bound(high), mode: "lines", line: edge, fill: "tonexty", fillcolor: translucent(ink, 0.16) });
    } else if (smoothing) {
      traces.push({ ...shared, y: place(values), mode: "lines", line: { color: translucent(ink, 0.22), width: 1 } });
    }
    const marked = isSparse || steps.length === 1;
    traces.push({
      ...shared, hoverinfo: "none", y: place(series.smoothed(smoothing)), mode: marked || zeros.length ? "lines+markers" : "lines", cliponaxis: false,
      line: { color: ink, width: 1.75, dash: curve.dash }, marker: { size: marked ? curve.size : 3, color: ink, symbol: curve.mark },
    });
    return traces;
  }

  layout([left, right], range) {
    const { layout, xaxis, yaxis } = baseLayout();
    const isShort = range[1] - range[0] < 6; // then Plotly would mark halves of a step
    const ticks = isShort ? { tick0: 0, dtick: 1 } : { nticks: 6, tickformat: "~s" };
    const hasRight = this.curves.some((curve) => curve.right);
    const yaxis2 = { ...yaxis, ...right.axis, overlaying: "y", side: "right", showgrid: false };
    return { ...layout, xaxis: { ...xaxis, ...ticks, range }, yaxis: { ...yaxis, ...left.axis }, ...(hasRight ? { yaxis2 } : {}) };
  }

  draw() {
    this.card.classList.toggle("has-data", this.hasValues);
    this.showValues();
    if (!this.hasValues && !this.drawn) return;
    const range = this.stepRange();
    const axes = [this.axisOf(false, range), this.axisOf(true, range)];
    const refused = this.options.log && axes[0].axis.type !== "log";
    this.note.textContent = refused ? "linear: some values have no logarithm" : "";
    Plotly.react(this.plot, this.traces(axes), this.layout(axes, range), CONFIG);
    if (!this.drawn) this.listen();
    this.drawn = true;
  }

  listen() {
    this.plot.on("plotly_hover", ({ xvals }) => this.options.onHover(this, xvals[0]));
    this.plot.on("plotly_unhover", () => this.options.onHover(this, null));
    this.plot.on("plotly_click", (event) => this.pick(event));
    listenToZoom(this.plot, (range) => {
      clearTimeout(this.picking);
      this.options.onZoom(this, range);
    });
  }

  /** A click leads to the trajectories of its step; a finger looks first, and its second tap leads there. */
  pick({ points, event }) {
    clearTimeout(this.picking);
    if (this.definition.x !== "step" || !points.length || event.detail > 1) return;
    const height = event.clientY - this.plot.getBoundingClientRect().top;
    const far = ({ y, yaxis }) => Math.abs(yaxis._offset + yaxis.c2p(y) - height);
    const nearest = points.reduce((one, other) => (far(other) < far(one) ? other : one));
    const isFirstTap = touch.matches && this.tapped !== nearest.x;
    this.tapped = nearest.x;
    if (isFirstTap) return;
    this.picking = setTimeout(() => this.options.onPick(nearest.x, purposeOf(nearest.data.meta)), DOUBLE_CLICK_MS);
  }

  /** All charts of the same steps show `range`, or everything again. */
  zoom(range) {
    if (range && this.curves.some((curve) => this.store.get(curve.key)?.low)) this.look.open(...range);
    else this.look.close();
  }

  /** Draw the shared line at `x` and say its step, or hide it. */
  point(x) {
    const layout = this.plot._fullLayout;
    const axis = layout?.xaxis;
    const inside = x != null && axis && x >= axis.range[0] && x <= axis.range[1];
    this.cursor.hidden = !inside;
    if (inside) this.placeCursor(axis._offset + axis.l2p(x), Math.round(x), layout._size);
    this.showValues(inside ? Math.round(x) : Infinity);
  }

  placeCursor(left, step, { t, h }) {
    const padding = parseFloat(getComputedStyle(this.plot).paddingLeft);
    const label = this.cursor.firstElementChild;
    Object.assign(this.cursor.style, { left: `${left + padding}px`, top: `${t}px`, height: `${h}px` });
    label.textContent = `${this.definition.x} ${step.toLocaleString("en-US")}`;
    const half = label.offsetWidth / 2;
    const shift = Math.min(Math.max(left, half), this.plot.clientWidth - half - 2 * padding) - left;
    label.style.transform = `translateX(calc(-50% + ${shift}px))`;
  }
}
