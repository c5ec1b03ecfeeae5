/* The curves of a run: one Plotly chart per card, drawn when it is in sight, and the others as soon as there is time.

   All cards of the same x axis share the pointer (a line that names its step, with the values there in each legend)
   and the steps that the reader zoomed to. */

import { AgeChart } from "./agechart.js";
import { CurveChart } from "./curvechart.js";
import { LaneChart } from "./lanechart.js";
import { TimeChart } from "./timechart.js";

const REDRAW_MS = 400;
const SOON_MS = 1000;
const soon = (work) => (window.requestIdleCallback ? requestIdleCallback(work, { timeout: SOON_MS }) : setTimeout(work, 50));

export class ChartGrid {
  /** `onPick(step, purpose)`: a point was clicked.  `onZoomed(isZoomed)`: some steps are looked at, or all again. */
  constructor(root, page, store, { seconds, lanes }, { onPick, onZoomed }) {
    const { charts, phases, glossary, zoomed } = page;
    Object.assign(this, { root, store, onZoomed, ages: page.ages });
    const onPoints = (chart, atOnce) => { this.stale.add(chart); if (atOnce) this.redraw(); else this.schedule(); };
    this.options = {
      smoothing: 0.5, log: false, zoomed, ranges: {}, onPoints, onPick,
      onHover: (source, x) => this.hover(source, x), onZoom: (source, range) => this.zoom(source.definition.x, range),
    };
    const card = (id) => document.querySelector(`#charts > [data-chart="${id}"], #timeline [data-chart="${id}"]`);
    this.curves = charts.map((definition) => new CurveChart(card(definition.id), definition, store, this.options));
    this.charts = [...this.curves];
    this.charts.push(new TimeChart(card("time"), { phases, glossary }, seconds, this.options));
    this.charts.push(new LaneChart(card("lanes"), { names: page.lane_names, url: page.lanes }, lanes, this.options));
    this.charts.push(new AgeChart(card("ages"), page.ages, store, this.options));
    this.stale = new Set(this.charts);
    this.owed = new Set();
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
    document.addEventListener("themechange", () => this.drawAll());
    addEventListener("beforeprint", () => { for (const chart of this.charts) this.draw(chart); });
    this.waitForDrags();
  }

  /** A chart that is dragged over is not drawn again under the pointer, and nobody points at it. */
  waitForDrags() {
    document.addEventListener("pointerdown", ({ target }) => {
      if (!target.closest?.(".plot")) return;
      this.isHeld = true;
      for (const chart of this.charts) chart.point(null);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      addEventListener(end, () => { if (this.isHeld) { this.isHeld = false; this.schedule(); } });
    }
  }

  /** Cards of parts that this run has, and one for each metric that stands in no card. */
  reveal() {
    for (const { definition, card, curves } of this.curves) {
      if (definition.is_optional && card.hidden) card.hidden = !curves.some((curve) => this.owns(definition, curve.key));
    }
    for (const { card, isOptional, hasValues } of this.charts) if (isOptional && hasValues && card.hidden) card.hidden = false;
    const others = this.store.keys().filter((key) => !this.shown.has(key) && !key.startsWith(this.ages)).sort();
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

  /** The card called `id` stands first while what it shows is what happens; without one, all stand in their order. */
  lead(id) {
    const cards = this.curves.map((chart) => chart.card).filter((card) => card.parentElement === this.root);
    const first = cards.find((card) => card.dataset.chart === id);
    const order = first ? [first, ...cards.filter((card) => card !== first)] : cards;
    order.forEach((card, index) => { if (this.root.children[index] !== card) this.root.insertBefore(card, this.root.children[index]); });
  }

  set(option, value) {
    this.options[option] = value;
    this.drawAll();
  }

  /** All look different now, those out of sight too. */
  drawAll() {
    this.owed = new Set(this.charts);
    this.changed();
  }

  /** The reader dragged over some steps, or, with null, wants to see the whole run again. */
  zoom(x, range) {
    this.options.ranges[x] = range;
    for (const chart of this.charts) {
      if (chart.definition.x !== x) continue;
      chart.zoom(range);
      chart.point(null);
      this.stale.add(chart);
      this.owed.add(chart);
    }
    this.onZoomed(Object.values(this.options.ranges).some(Boolean));
    requestAnimationFrame(() => this.redraw());
  }

  resetZoom() {
    for (const x of Object.keys(this.options.ranges)) this.zoom(x, null);
  }

  changed() {
    this.reveal();
    for (const { card, hasValues } of this.charts) {
      const note = card.querySelector(".no-data");
      note.textContent = hasValues ? "Drawing…" : note.dataset.empty;
    }
    if (this.isOver) this.keepWhatCame();
    this.stale = new Set(this.charts);
    this.schedule();
  }

  /** The run has ended: nothing comes any more, so cards without values are of no use. */
  end() {
    if (this.isOver) return;
    this.isOver = true;
    this.changed();
  }

  keepWhatCame() {
    for (const { card, hasValues } of this.charts) {
      if (!hasValues) card.hidden = card.dataset.empty = true;
      else if (card.dataset.empty) { card.hidden = false; delete card.dataset.empty; }
    }
    document.getElementById("no-curves").hidden = this.charts.some((chart) => chart.hasValues);
    document.getElementById("curve-tools").hidden = !this.charts.some((chart) => chart.hasValues);
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
    if (this.isHeld) return;
    for (const chart of this.charts) if (this.stale.has(chart) && this.inSight.has(chart)) this.draw(chart);
    this.drawTheRest();
  }

  /** Cards that are out of sight are drawn one by one, for the first time and after a zoom: none is found empty. */
  drawTheRest() {
    const next = this.charts.find((chart) => (!chart.drawn || this.owed.has(chart)) && chart.hasValues && chart.plot.offsetParent);
    if (!next || this.isDrawingTheRest) return;
    this.isDrawingTheRest = true;
    soon(() => {
      this.isDrawingTheRest = false;
      this.draw(next);
      if (next.drawn) this.drawTheRest();
    });
  }

  draw(chart) {
    if (!chart.plot.offsetParent) return; // in another tab of the page: it has no size
    this.stale.delete(chart);
    this.owed.delete(chart);
    chart.draw();
  }

  hover(source, x) {
    for (const chart of this.charts) if (chart.definition.x === source.definition.x) chart.point(x);
  }
}
