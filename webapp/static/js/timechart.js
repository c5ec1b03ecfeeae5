/* Seconds per phase, stacked by step: who waited for whom, and since when. */

import { CONFIG, baseLayout, listenToZoom } from "./plotstyle.js";
import { colour } from "./theme.js";

export class TimeChart {
  constructor(card, { phases, glossary }, seconds, options) {
    Object.assign(this, { card, phases, glossary, seconds, options, definition: { x: "step" } });
    this.plot = card.querySelector(".plot");
  }

  steps() {
    const has = (step) => this.phases.some((phase) => this.seconds.get(step).has(phase));
    return [...this.seconds.keys()].filter(has).sort((a, b) => a - b);
  }

  get hasValues() {
    return this.steps().length > 0;
  }

  draw() {
    const steps = this.steps();
    this.card.classList.toggle("has-data", steps.length > 0);
    this.legend(steps);
    if (!steps.length && !this.drawn) return;
    const { layout, xaxis, yaxis } = baseLayout();
    const name = (phase) => this.glossary[phase].name;
    const traces = this.phases.map((phase) => ({
      type: "bar", name: name(phase), x: steps, y: steps.map((step) => this.took(step, phase)),
      marker: { color: colour(`phase-${phase}`) }, hovertemplate: `step %{x} · ${name(phase)} %{y:.2f} s<extra></extra>`,
    }));
    const range = this.options.ranges.step ?? [steps[0] - 0.5, steps.at(-1) + 0.5];
    const inSight = steps.filter((step) => step >= range[0] && step <= range[1]);
    const highest = Math.max(0, ...(inSight.length ? inSight : steps).map((step) => this.total(step)));
    Plotly.react(this.plot, traces, {
      ...layout, hovermode: "closest", bargap: 0.15,
      xaxis: { ...xaxis, range, ...(range[1] - range[0] < 12 ? { dtick: 1 } : { nticks: 12 }) },
      yaxis: { ...yaxis, nticks: 4, ticksuffix: " s", range: [0, 1.05 * highest || 1] },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line-strong"), font: { color: colour("text"), size: 12 } },
    }, CONFIG);
    if (!this.drawn) listenToZoom(this.plot, (chosen) => this.options.onZoom(this, chosen));
    this.drawn = true;
  }

  took(step, phase) {
    return this.seconds.get(step).get(phase) ?? 0;
  }

  total(step) {
    return this.phases.reduce((sum, phase) => sum + this.took(step, phase), 0);
  }

  /** Made once: a word may have the focus. */
  legend(steps) {
    const sums = this.phases.map((phase) => steps.reduce((sum, step) => sum + this.took(step, phase), 0));
    const all = sums.reduce((one, other) => one + other, 0);
    this.items ??= new Map(this.phases.map((phase) => [phase, this.item(phase)]));
    this.phases.forEach((phase, index) => {
      const item = this.items.get(phase);
      item.hidden = !sums[index];
      item.querySelector("b").textContent = `${Math.round((100 * sums[index]) / (all || 1))}%`;
    });
  }

  item(phase) {
    const item = document.createElement("span");
    const [mark, word, share] = ["i", "button", "b"].map((tag) => document.createElement(tag));
    mark.style.color = `var(--phase-${phase})`;
    Object.assign(word, { type: "button", className: "term", textContent: this.glossary[phase].name });
    word.dataset.term = phase;
    item.append(mark, word, share);
    this.card.querySelector(".legend").append(item);
    return item;
  }

  point() {}

  zoom() {}
}
