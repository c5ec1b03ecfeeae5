/* The lanes of a run's newest steps, and where their spans lie beside each other.  Pure: no page, no chart. */

const MOST_STEPS = 24; // further ones are asked for
const LANE_ROWS = 24; // of more spans at once, some lie upon each other

export class LaneStore {
  constructor() {
    this.steps = new Map(); // step -> spans
  }

  get newest() {
    return Math.max(...this.steps.keys());
  }

  /** A later word about a step replaces the earlier one. */
  add(step, spans) {
    this.steps.set(step, spans);
    for (const known of [...this.steps.keys()].sort((a, b) => a - b).slice(0, -MOST_STEPS)) this.steps.delete(known);
  }

  /** An attempt goes on from `fromStep`: what was said about later steps is void. */
  rewind(fromStep) {
    for (const step of [...this.steps.keys()]) if (step > fromStep) this.steps.delete(step);
  }

  /** The last `count` steps that are not beyond `last`, as [step, spans], in their order. */
  upTo(last, count) {
    return [...this.steps].filter(([step]) => step <= last).sort(([a], [b]) => a - b).slice(-count);
  }
}

/** Places the spans of one lane, which are in order of time: those at the same time get rows of their own.

    A row that is free takes the next span; where none is left, that which is free first does. */
export function rowsOf(spans) {
  const freeAt = [];
  const rows = spans.map(({ began_at: begin, seconds }) => {
    let row = freeAt.findIndex((free) => free <= begin);
    if (row < 0) row = freeAt.length < LANE_ROWS ? freeAt.length : freeAt.indexOf(Math.min(...freeAt));
    freeAt[row] = Math.max(freeAt[row] ?? 0, begin + seconds);
    return row;
  });
  return { rows, count: freeAt.length };
}
