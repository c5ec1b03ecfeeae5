/* The points of all curves of a run, each (key, step) once, in the order of steps. */

/* These keys count the steps of the supervised start, not those of RL. */
const isColdStart = (key) => key.startsWith("sft/");

class Series {
  constructor(steps = [], values = [], low = null, high = null) {
    Object.assign(this, { steps, values, low, high });
  }

  /** A later value for the same step replaces the earlier one, as in the database. */
  add(step, value) {
    const at = this.place(step);
    const replaced = this.steps[at] === step ? 1 : 0;
    this.steps.splice(at, replaced, step);
    for (const list of [this.values, this.low, this.high]) list?.splice(at, replaced, value);
  }

  place(step) {
    let low = 0;
    let high = this.steps.length;
    if (!high || this.steps[high - 1] < step) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  cutAfter(step) {
    const length = step === Infinity ? this.steps.length : this.place(step + 1);
    for (const list of [this.steps, this.values, this.low, this.high]) if (list) list.length = length;
  }

  /** The value at the last step that is not beyond `step`. */
  at(step) {
    const index = this.place(step + 1) - 1;
    return index < 0 ? null : this.values[index];
  }

  /** Exponential moving average without its bias towards 0; weight 0 changes nothing. */
  smoothed(weight) {
    if (!weight) return this.values;
    let average = 0;
    let mass = 0;
    return this.values.map((value) => {
      average = weight * average + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return average / mass;
    });
  }
}

export class SeriesStore {
  constructor() {
    this.series = new Map();
  }

  /** `saved`: {key: {steps, values, low?, high?}} as the snapshot gives it. */
  load(saved) {
    for (const [key, { steps, values, low, high }] of Object.entries(saved)) {
      this.series.set(key, new Series(steps, values, low, high));
    }
  }

  keys() {
    return [...this.series.keys()];
  }

  get(key) {
    return this.series.get(key);
  }

  /** Applies the values of one metric event. */
  add(step, values) {
    for (const [key, value] of Object.entries(values)) {
      if (!this.series.has(key)) this.series.set(key, new Series());
      this.series.get(key).add(step, value);
    }
  }

  /** An attempt goes on from `fromStep`: what was said about later steps is void. */
  rewind(fromStep, fromColdStartStep = null) {
    const coldStart = fromColdStartStep ?? (fromStep > 0 ? Infinity : -1);
    for (const [key, series] of this.series) series.cutAfter(isColdStart(key) ? coldStart : fromStep);
  }
}
