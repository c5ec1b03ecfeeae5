/* The estimate beside what came: for each step how long the steps behind it took, and are expected to take. */

const TOOK = "perf/step_seconds";
const ESTIMATED = "perf/eta_seconds";
export const CAME = "came/left_seconds";

/** Writes the curve `CAME` from what the steps took; where the run goes on, its newest estimate stands for the rest. */
export function tellWhatCame(store, isOver) {
  const took = store.get(TOOK);
  const estimated = store.get(ESTIMATED);
  if (!took?.steps.length || !estimated?.steps.length) return;
  let left = isOver ? 0 : estimated.values.at(-1);
  const values = [];
  for (let index = took.steps.length - 1; index >= 0; index -= 1) {
    values.unshift(left);
    left += took.values[index] * (took.steps[index] - (took.steps[index - 1] ?? took.steps[index] - 1));
  }
  store.load({ [CAME]: { steps: [...took.steps], values } });
}
