/* A close look of one chart at some steps: their points, fetched again as finely as they fit.

   The whole run stays in the store; a look covers it until it is closed.  What happens live is told
   to both.  Events that come while the points are on their way are kept, and those that the answer
   does not contain yet are applied after it, so the look has neither a gap nor a double point. */

import { SeriesStore } from "./series.js";

const MARGIN = 0.01; // of the range, at each side, so that lines do not end inside the picture

export class CloseLook {
  /** `onPoints()` is called when there is something finer to draw. */
  constructor({ url, keys, onPoints, fetchJson = fetchedJson }) {
    Object.assign(this, { url, keys, onPoints, fetchJson });
    this.close();
  }

  close() {
    Object.assign(this, { points: null, range: null, asked: null, late: null });
  }

  /** The points of `key` in sight, or nothing: then the whole run's are the finest there are. */
  get(key) {
    return this.points?.get(key);
  }

  async open(from, to) {
    const margin = Math.ceil(MARGIN * (to - from)) || 1;
    const range = { first: Math.max(0, Math.floor(from) - margin), last: Math.max(0, Math.ceil(to) + margin) };
    Object.assign(this, { range, asked: [from, to], late: [] });
    const query = new URLSearchParams([["first_step", range.first], ["last_step", range.last], ...this.keys.map((key) => ["key", key])]);
    const answer = await this.fetchJson(`${this.url}?${query}`);
    if (this.range !== range) return; // looked elsewhere since
    if (answer) this.take(answer); else this.close();
    this.onPoints();
  }

  take({ seq, series }) {
    this.points = new SeriesStore();
    this.points.load(series);
    for (const event of this.late) if (event.seq > seq) this.points.add(event.step, event.values);
    this.late = null;
  }

  add(seq, step, values) {
    if (!this.range) return;
    const own = Object.fromEntries(Object.entries(values).filter(([key]) => this.keys.includes(key)));
    if (this.late) this.late.push({ seq, step, values: own });
    else this.points.add(step, own);
  }

  /** A new attempt goes on from `fromStep`: what is in sight may be void, and is asked again. */
  rewind(fromStep, fromColdStartStep) {
    this.points?.rewind(fromStep, fromColdStartStep);
    if (this.range) this.open(...this.asked);
  }
}

/** Null where it cannot be had now: what is in sight stays. */
export async function fetchedJson(url) {
  const answer = await fetch(url, { headers: { Accept: "application/json" } }).catch(() => null);
  return answer?.ok && !answer.redirected ? answer.json().catch(() => null) : null;
}
