/* Who works beside whom: one lane each for rollouts, generation, environment, reward, training, weights and devices, over the clock.

   Shows the newest steps and follows them, until the reader goes to earlier ones. */

import { rowsOf } from "./lanes.js";
import { CONFIG, baseLayout } from "./plotstyle.js";
import { colour } from "./theme.js";

const STEPS = 2; // in sight
const ROW_PX = 7;
const LEAST_LANE_PX = 20;
const GAP_PX = 8;
const AXIS_PX = 38;

export class LaneChart {
  constructor(card, { names, url }, lanes, options) {
    Object.assign(this, { card, names, url, lanes, options, definition: { x: "seconds" }, isOptional: true });
    this.plot = card.querySelector(".plot");
    this.last = Infinity; // the last step in sight; Infinity: the newest
    this.asked = Infinity; // the one that was asked for last
    for (const button of card.querySelectorAll("[data-go]")) button.addEventListener("click", () => this.go(button.dataset.go));
    card.querySelector(".legend").replaceChildren(...Object.entries(names).map((entry) => this.item(...entry)));
  }

  get hasValues() {
    return this.lanes.steps.size > 0;
  }

  item(lane, name) {
    const item = document.createElement("span");
    const [mark, word] = ["i", "button"].map((tag) => document.createElement(tag));
    mark.style.color = `var(--lane-${lane})`;
    Object.assign(word, { type: "button", className: "term", textContent: name });
    word.dataset.term = `lane-${lane}`;
    item.append(mark, word);
    return item;
  }

  /** What the page lets go meanwhile stays in sight as it was. */
  steps() {
    const kept = this.lanes.upTo(this.last, STEPS);
    return this.last === Infinity || kept.length === STEPS ? kept : this.earlier;
  }

  /** What this page has not kept is asked for; of several answers the one that was asked for last counts. */
  async go(where) {
    const newest = this.lanes.newest;
    const from = this.asked === Infinity ? newest : this.asked;
    const wanted = { earlier: from - STEPS, later: from + STEPS, newest: Infinity }[where];
    const last = wanted >= newest ? Infinity : Math.max(wanted, 1);
    this.asked = last;
    const kept = this.lanes.upTo(last, STEPS);
    const earlier = last === Infinity || kept.length === STEPS ? kept : await this.fetched(last);
    if (this.asked !== last) return;
    if (!earlier?.length) return this.complain(earlier ? "nothing earlier" : "could not be loaded");
    Object.assign(this, { last, earlier, zoomed: null });
    this.options.onPoints(this, true);
  }

  async fetched(last) {
    const answer = await fetch(`${this.url}?last_step=${last}`, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer?.ok) return null;
    return (await answer.json()).lanes.map(({ step, spans }) => [step, spans]);
  }

  /** Those in sight stay there. */
  complain(reason) {
    this.asked = this.last;
    this.card.querySelector("[data-steps]").textContent = reason;
  }

  draw() {
    this.card.classList.toggle("has-data", this.hasValues);
    if (!this.hasValues) return;
    const steps = this.steps();
    this.showPlace(steps);
    const spans = steps.flatMap(([step, its]) => its.map((span) => ({ ...span, step }))).sort((a, b) => a.began_at - b.began_at);
    const begin = spans[0]?.began_at ?? 0;
    const { traces, ticks, height } = this.placed(spans, begin);
    const end = Math.max(0, ...spans.map((span) => span.began_at + span.seconds - begin)) || 1;
    const { layout, xaxis, yaxis } = baseLayout();
    this.plot.style.setProperty("--lanes-height", `${height + AXIS_PX}px`);
    Plotly.react(this.plot, traces, {
      ...layout, height: height + AXIS_PX - 5, barmode: "overlay", bargap: 0, hovermode: "closest", margin: { ...layout.margin, l: 92 },
      xaxis: { ...xaxis, range: this.zoomed ?? [0, end], ticksuffix: " s", nticks: 10, showgrid: true },
      yaxis: { ...yaxis, range: [height, 0], tickvals: ticks.map(({ at }) => at), ticktext: ticks.map(({ name }) => name), showgrid: false, automargin: false },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line-strong"), font: { color: colour("text"), size: 12 }, align: "left" },
    }, CONFIG);
    if (!this.drawn) this.listen();
    this.drawn = true;
  }

  /** A trace for each lane that something was said of: of the others nobody knows whether they were idle.  Heights are in pixels from the top. */
  placed(spans, begin) {
    let top = GAP_PX / 2;
    const ticks = [];
    const reported = Object.entries(this.names).filter(([lane]) => spans.some((span) => span.lane === lane));
    const traces = reported.map(([lane, name]) => {
      const own = spans.filter((span) => span.lane === lane);
      const { rows, count } = rowsOf(own);
      const tall = Math.max(LEAST_LANE_PX, count * ROW_PX);
      const row = tall / Math.max(count, 1);
      ticks.push({ at: top + tall / 2, name });
      const trace = {
        type: "bar", orientation: "h", name, base: own.map((span) => span.began_at - begin), x: own.map((span) => span.seconds),
        y: rows.map((at) => top + (at + 0.5) * row), width: own.map(() => Math.max(row - 1, 2)), marker: { color: colour(`lane-${lane}`), opacity: 0.85, line: { width: 0 } },
        customdata: own.map((span) => [span.label, span.seconds.toFixed(3), span.step]),
        hovertemplate: `${name}<br>%{customdata[0]}<br>%{customdata[1]} s from %{base:.2f} s, step %{customdata[2]}<extra></extra>`,
      };
      top += tall + GAP_PX;
      return trace;
    });
    return { traces, ticks, height: top - GAP_PX / 2 };
  }

  showPlace(steps) {
    const [first, last] = [steps[0]?.[0], steps.at(-1)?.[0]];
    const isNewest = this.last === Infinity;
    this.card.querySelector("[data-steps]").textContent = first === last ? `step ${last}` : `steps ${first} to ${last}`;
    const button = (name) => this.card.querySelector(`[data-go="${name}"]`);
    button("earlier").disabled = !(first > 1);
    button("later").disabled = isNewest;
    button("newest").setAttribute("aria-pressed", String(isNewest));
  }

  /** A drag looks closer, a double click at everything again. */
  listen() {
    const zoom = (range) => { this.zoomed = range; this.options.onPoints(this, true); };
    this.plot.on("plotly_doubleclick", () => zoom(null));
    this.plot.on("plotly_relayout", (changed) => {
      const [from, to] = [changed["xaxis.range[0]"], changed["xaxis.range[1]"]];
      if (from != null) zoom([Math.max(0, from), to]);
    });
  }

  point() {}

  zoom() {}
}
