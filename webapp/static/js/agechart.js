/* How old the rollouts were that each step trained on: shares by age in versions, stacked to 100 %. */

import { CONFIG, baseLayout, listenToZoom } from "./plotstyle.js";
import { colour } from "./theme.js";

const OWN_COLOURS = 5; // older ones share one

export class AgeChart {
  constructor(card, prefix, store, options) {
    Object.assign(this, { card, prefix, store, options, definition: { x: "step" }, isOptional: true, items: new Map() });
    this.plot = card.querySelector(".plot");
  }

  ages() {
    const keys = this.store.keys().filter((key) => key.startsWith(this.prefix) && this.store.get(key).steps.length);
    return keys.map((key) => Number(key.slice(this.prefix.length))).filter(Number.isInteger).sort((a, b) => a - b);
  }

  get hasValues() {
    return this.ages().length > 0;
  }

  colourOf(age) {
    return `age-${age < OWN_COLOURS ? age : "older"}`;
  }

  draw() {
    const ages = this.ages();
    this.card.classList.toggle("has-data", ages.length > 0);
    if (!ages.length && !this.drawn) return;
    this.legend(ages);
    const all = ages.map((age) => this.store.get(this.prefix + age));
    const steps = all.flatMap((series) => series.steps);
    const range = this.options.ranges.step ?? [Math.min(...steps) - 0.5, Math.max(...steps) + 0.5];
    const { layout, xaxis, yaxis } = baseLayout();
    const traces = ages.map((age, index) => ({
      type: "bar", name: this.named(age), x: all[index].steps, y: all[index].values, marker: { color: colour(this.colourOf(age)) },
      hovertemplate: `step %{x} · ${this.named(age)} %{y:.1%}<extra></extra>`,
    }));
    Plotly.react(this.plot, traces, {
      ...layout, hovermode: "closest", bargap: 0.15,
      xaxis: { ...xaxis, range, ...(range[1] - range[0] < 12 ? { dtick: 1 } : { nticks: 6 }) },
      yaxis: { ...yaxis, nticks: 4, tickformat: ".0%", range: [0, 1] },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line-strong"), font: { color: colour("text"), size: 12 } },
    }, CONFIG);
    if (!this.drawn) listenToZoom(this.plot, (chosen) => this.options.onZoom(this, chosen));
    this.drawn = true;
  }

  named(age) {
    return age === 0 ? "of the newest version" : `${age} version${age === 1 ? "" : "s"} old`;
  }

  legend(ages) {
    for (const age of ages) {
      if (!this.items.has(age)) this.items.set(age, this.item(age));
      this.items.get(age).querySelector("b").textContent = `${Math.round(100 * this.mean(age))}%`;
    }
  }

  /** Over the steps; one that says nothing of an age had none of it. */
  mean(age) {
    const steps = Math.max(...this.ages().map((one) => this.store.get(this.prefix + one).steps.length));
    return this.store.get(this.prefix + age).values.reduce((sum, value) => sum + value, 0) / steps;
  }

  item(age) {
    const item = document.createElement("span");
    const [mark, share] = ["i", "b"].map((tag) => document.createElement(tag));
    mark.style.color = `var(--${this.colourOf(age)})`;
    item.append(mark, this.named(age), share);
    this.card.querySelector(".legend").append(item);
    return item;
  }

  point() {}

  zoom() {}
}
