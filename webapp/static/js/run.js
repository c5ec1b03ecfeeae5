/* The live page of one run: the snapshot first, then everything that came after it. */

import { Arrivals, sampledForStep } from "./arrivals.js";
import { ChartGrid } from "./charts.js";
import { tellWhatCame } from "./estimate.js";
import { explainTerms } from "./glossary.js";
import { onKey } from "./keys.js";
import { LaneStore } from "./lanes.js";
import { LiveRun } from "./live.js";
import { LogTail } from "./loglines.js";
import { SecurityTab } from "./securitytab.js";
import { format } from "./numbers.js";
import { SeriesStore } from "./series.js";
import { switchTabs } from "./tabs.js";
import { saySignedOut } from "./session.js";
import { duration, now, timeElement } from "./times.js";
import { fetchedJson } from "./zoom.js";

const ENDED = ["succeeded", "failed", "cancelled"];
const LINK = {
  connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", "signed-out": "Signed out",
  refused: "Access ended: it is gone, or you are not in its team any more",
};
const element = (id) => document.getElementById(id);

const page = JSON.parse(element("page-data").textContent);
const root = element("run");
const store = new SeriesStore();
const seconds = new Map(); // step -> phase -> seconds
const lanes = new LaneStore();
const onZoomed = (isZoomed) => { element("reset-zoom").hidden = !isZoomed; };
const grid = new ChartGrid(element("charts"), page, store, { seconds, lanes }, { onPick: showTrajectories, onZoomed });
const log = new LogTail(element("log"), element("follow"));
const arrivals = new Arrivals(element("trajectories"));
const security = new SecurityTab(element("security"));
let shown = {};

function write(id, text) {
  if (element(id).textContent !== String(text)) element(id).textContent = text;
}

function showRun(run) {
  const moved = run.state !== shown.state || run.desired !== shown.desired || run.attempt !== shown.attempt;
  const isFirst = !shown.state;
  shown = run;
  for (const id of ["state", "progress"]) element(id).dataset.state = run.state;
  write("state", run.state[0].toUpperCase() + run.state.slice(1));
  showNow(run);
  write("attempt", run.attempt);
  element("heartbeat").replaceChildren(run.heartbeat_at ? timeElement(run.heartbeat_at) : "–");
  element("failure").hidden = !run.failure_reason;
  write("failure-reason", run.failure_reason);
  root.dataset.state = run.state;
  if (!isFirst && ENDED.includes(run.state)) {
    tellWhatCame(store, true);
    grid.end();
  }
  if (moved && !isFirst) htmx.trigger(document.body, "run-moved");
  tick();
}

/* What happens now, in the server's words (webapp/runs/now.py). */
function showNow({ now: told, phase }) {
  write("now", told.sentence);
  element("progress").max = told.of || 1;
  element("progress").value = told.done;
  write("step-unit", told.unit);
  write("step", told.done);
  write("total-steps", told.of);
  write("eta", told.left);
  element("phase-term").hidden = !told.phase;
  element("phase-term").dataset.term = phase;
  write("phase-term", told.phase);
  grid.lead(told.leads);
}

const LONG_S = 60; // a phase that is silent for longer names the worker that it waits for

/* What changes by itself: how long a phase and the run have lasted. */
function tick() {
  const isLive = shown.now?.phase && shown.phase_since;
  const lasted = isLive ? Math.max(0, now() - shown.phase_since) : 0;
  const since = shown.state === "queued" ? Math.max(0, now() - new Date(shown.state_since) / 1000) : lasted;
  const queued = `${shown.desired === "pause" ? "paused in the queue" : "waits for a worker"} · ${duration(since)}`;
  const busy = shown.waiting_for ? (lasted < LONG_S ? ` · ${shown.waiting_for} at work` : ` · nothing heard from ${shown.waiting_for} yet`) : "";
  const live = isLive ? ` · ${duration(lasted)}${busy}` : "–";
  write("phase", shown.state === "queued" ? queued : live);
  const end = shown.ended_at ? new Date(shown.ended_at) / 1000 : now();
  write("elapsed", shown.started_at ? duration(Math.max(0, end - new Date(shown.started_at) / 1000)) : "–");
}

function showFigures() {
  for (const { key, unit, better } of page.figures) {
    const cell = document.querySelector(`[data-figure="${key}"]`);
    const values = store.get(key)?.values ?? [];
    cell.querySelector("b").textContent = format(values.at(-1), unit);
    const delta = cell.querySelector(".delta");
    const change = values.length > 1 ? values.at(-1) - values[0] : null;
    const points = unit === "share" && change != null;
    delta.textContent = change == null ? "" : (change >= 0 ? "+" : "−") + (points ? `${Math.abs(100 * change).toFixed(1)} pt` : format(Math.abs(change), unit));
    delta.title = change == null ? "" : `since the first value, ${format(values[0], unit)}`;
    const isGood = better && change && (change > 0) === (better === "up");
    delta.className = `delta ${better && change ? (isGood ? "good" : "bad") : ""}`;
  }
}

function count(name, value) {
  const badge = document.querySelector(`[data-count="${name}"]`);
  badge.hidden = !value;
  badge.textContent = value.toLocaleString("en-US");
}

function addPhase(step, phase, took) {
  if (took == null) return;
  if (!seconds.has(step)) seconds.set(step, new Map());
  seconds.get(step).set(phase, took);
}

function rewind({ from_step: fromStep, from_cold_start_step: coldStart }) {
  store.rewind(fromStep, coldStart);
  grid.rewind(fromStep, coldStart);
  lanes.rewind(fromStep);
  arrivals.rewind(fromStep);
  for (const step of [...seconds.keys()]) if (step > fromStep) seconds.delete(step);
}

function apply(events) {
  const logs = [];
  let trajectories = [];
  for (const event of events) {
    if (event.kind === "metric") {
      store.add(event.step, event.values);
      grid.add(event.seq, event.step, event.values);
    } else if (event.kind === "phase") addPhase(event.step, event.phase, event.seconds);
    else if (event.kind === "lanes") lanes.add(event.step, event.spans);
    else if (event.kind === "log") logs.push(event);
    else if (event.kind === "trajectory" && event.trajectory) trajectories.push({ ...event.trajectory, seq: event.seq });
    else if (event.kind === "egress" || event.kind === "settled") security.changed();
    else if (event.kind === "alert") security.changed();
    else if (event.kind === "checkpoint") fetchCheckpoints();
    else if (event.kind === "started") {
      trajectories = trajectories.filter((one) => sampledForStep(one) <= event.from_step);
      rewind(event);
    }
  }
  log.add(logs);
  arrivals.add(trajectories);
  count("logs", log.count);
  if (events.some((event) => ["trajectory", "alert", "started"].includes(event.kind))) countAgain();
  tellWhatCame(store, ENDED.includes(shown.state));
  if (events.some((event) => ["metric", "phase", "lanes", "started"].includes(event.kind))) {
    grid.changed();
    showFigures();
  }
  if (events.some((event) => event.kind === "metric" && "perf/step_seconds" in event.values)) stepIsOver();
}

/* The words about waiting are fetched again: once for all steps of a second. */
function stepIsOver() {
  telling ??= setTimeout(() => {
    telling = null;
    htmx.trigger(document.body, "run-step");
  }, TELL_MS);
}

/* What is reported may replace what was counted, and a new attempt takes some back: only the server knows. */
function countAgain() {
  isCounted = false;
  counting ??= setTimeout(async () => {
    isCounted = true;
    const found = await fetchedJson(page.counts);
    counting = null;
    if (found) showCounts(found);
    if (!isCounted) countAgain();
  }, TELL_MS);
}

function showCounts({ trajectories, alerts }) {
  count("trajectories", trajectories);
  count("security", alerts);
}

const TELL_MS = 1000;
const MEASURED_EVERY_MS = 10_000;
let telling = null;
let counting = null;
let isCounted = true;

function showLink(status) {
  const link = element("link-state");
  link.dataset.link = status;
  link.textContent = LINK[status] ?? "";
  root.dataset.link = status;
  if (status === "signed-out") saySignedOut();
}

async function begin() {
  const answer = await fetch(page.snapshot, { headers: { Accept: "application/json" } }).catch(() => null);
  if (answer?.status === 404) return showLink("refused");
  if (answer?.redirected) return showLink("signed-out"); // to the sign-in page
  const first = answer?.ok ? await answer.json().catch(() => null) : null;
  if (!first) {
    showLink("reconnecting");
    return setTimeout(begin, 2000);
  }
  store.load(first.series);
  tellWhatCame(store, ENDED.includes(first.run.state));
  for (const [step, phase, took] of first.phases) addPhase(step, phase, took);
  for (const { step, spans } of first.lanes) lanes.add(step, spans);
  log.add(first.logs);
  count("logs", log.count);
  showCounts(first);
  showRun(first.run);
  showFigures();
  grid.changed();
  if (ENDED.includes(first.run.state)) grid.end();
  tabs = switchTabs(openTab);
  listen();
  root.dataset.loaded = "";
  if (ENDED.includes(first.run.state)) return showLink("ended");
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  new LiveRun({
    url: `${scheme}://${location.host}/live/runs/${root.dataset.run}/`,
    after: first.seq,
    onFrame: (events, run) => { apply(events); showRun(run); },
    onStatus: showLink,
  }).start();
}

const fetchCheckpoints = () => htmx.trigger(document.body, "run-checkpoint");

/* The list of checkpoints waits for a dialog in it to be closed: what is typed there is not taken away. */
function waitForDialogs() {
  document.querySelector('[data-panel="checkpoints"]').addEventListener("htmx:beforeSwap", (event) => {
    const open = event.detail.target.querySelector("dialog[open]");
    if (!open) return;
    event.detail.shouldSwap = false;
    open.addEventListener("close", fetchCheckpoints, { once: true });
  });
}

/* From a point of a curve to what it was made of. */
function showTrajectories(step, purpose) {
  arrivals.ask({ step, purpose });
  tabs.show("trajectories");
}

/* What processes take has no event: it is in the engine's heartbeat, and the server puts it into words. */
function measureAgain() {
  if (shown.started_at && !ENDED.includes(shown.state) && !element("timeline").hidden) htmx.trigger(document.body, "run-usage");
}

function openTab(name) {
  if (name === "trajectories") arrivals.open();
  if (name === "security") security.open();
  if (name === "logs") log.follow();
  if (name === "curves" || name === "timeline") {
    dispatchEvent(new Event("resize")); // Plotly measures what was hidden
    grid.schedule();
  }
  if (name === "timeline") measureAgain();
}

let tabs;

function listen() {
  element("smoothing").addEventListener("input", ({ target }) => {
    write("smoothing-value", Number(target.value).toFixed(2));
    grid.set("smoothing", Number(target.value));
  });
  element("log-axis").addEventListener("click", toggleLog);
  element("reset-zoom").addEventListener("click", () => grid.resetZoom());
  onKey("l", "Logarithmic axes", toggleLog);
  waitForDialogs();
  tabs.names.forEach((name, index) => onKey(String(index + 1), `Show ${name}`, () => tabs.show(name)));
  setInterval(tick, 1000);
  setInterval(measureAgain, MEASURED_EVERY_MS);
}

function toggleLog() {
  const button = element("log-axis");
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  grid.set("log", on);
}

explainTerms(element("glossary-tip"), page.glossary);
showLink("connecting");
begin();
