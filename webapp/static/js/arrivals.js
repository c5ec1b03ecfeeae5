/* The list of trajectories on a live page: fetched once, then new ones come in at the top as they happen.

   What arrives while the list is being fetched is kept, so nothing falls between the two. */

import { format } from "./numbers.js";

const KEPT = 2000;
const SHOWN = 100;
const TELL_MS = 1000;

/** The step that it was sampled for; of an evaluation the number of finished steps. */
export function sampledForStep(one) {
  return one.purpose === "train" ? one.sampled_at_version + 1 : Math.max(0, one.sampled_at_version);
}

export class Arrivals {
  constructor(box) {
    this.box = box;
    this.recent = [];
    document.body.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target === box) this.note(event.detail.pathInfo.finalRequestPath);
      if (event.target === box || box.contains(event.target) || event.target.contains(box)) this.catchUp();
    });
  }

  /** Fetch the list when its tab is opened for the first time. */
  open() {
    if (this.opened) return this.path && this.note();
    this.opened = true;
    htmx.ajax("GET", this.box.dataset.url + location.search, { target: this.box, swap: "innerHTML" });
  }

  /** Fetch the list with this filter, whether or not it was opened before. */
  ask(filter) {
    this.opened = true;
    this.path = `${this.box.dataset.url}?${new URLSearchParams(filter)}`;
    htmx.ajax("GET", this.path, { target: this.box, swap: "innerHTML" });
  }

  /** The filter stands in the address, so that whoever comes back, or is sent it, sees the same list. */
  note(path = this.path) {
    this.path = path;
    if (this.box.closest("[data-panel]").hidden) return; // another tab was opened since: it has the address
    const chosen = [...new URLSearchParams(path.split("?")[1])].filter(([name, value]) => value && name !== "tab");
    history.replaceState(null, "", `?${new URLSearchParams([["tab", "trajectories"], ...chosen])}`);
  }

  /** A later report of a trajectory replaces the earlier one, here and in the table. */
  add(trajectories) {
    const again = new Set(trajectories.map((one) => one.id));
    this.recent = this.recent.filter((one) => !again.has(one.id)).concat(trajectories).slice(-KEPT);
    if (!this.opened) return;
    this.catchUp();
    if (trajectories.length) this.tellSoon();
  }

  /** The histogram is the server's: it is asked again, once for all that come within a second. */
  tellSoon() {
    this.telling ??= setTimeout(() => {
      this.telling = null;
      htmx.trigger(document.body, "run-trajectories");
    }, TELL_MS);
  }

  rewind(fromStep) {
    this.recent = this.recent.filter((one) => sampledForStep(one) <= fromStep);
    for (const row of this.box.querySelectorAll("tr[data-step]")) if (Number(row.dataset.step) > fromStep) row.remove();
  }

  /** Put what is newer than the table's newest row on top of it, if it passes the table's filter. */
  catchUp() {
    const body = this.box.querySelector("tbody[data-newest]");
    if (!body) return;
    const fresh = this.recent.filter((one) => one.seq > Number(body.dataset.newest));
    if (!fresh.length) return;
    body.dataset.newest = fresh.at(-1).seq;
    const reported = new Set(fresh.map((one) => one.id));
    for (const row of [...body.rows]) if (reported.has(row.querySelector('[data-cell="id"]').textContent)) row.remove();
    const filter = JSON.parse(body.dataset.filter);
    const rows = fresh.filter((one) => passes(one, filter)).slice(-SHOWN).map((one) => this.row(one)).reverse();
    body.prepend(...rows);
    while (body.childElementCount > SHOWN) body.lastElementChild.remove();
    if (rows.length) this.box.querySelector(".no-rows")?.remove();
  }

  /** The server's own row template, filled in. */
  row(one) {
    const row = this.box.querySelector("template").content.querySelector("tr").cloneNode(true);
    row.dataset.step = sampledForStep(one);
    const texts = {
      id: one.id, purpose: one.purpose, sampled_at_version: one.sampled_at_version,
      trained_at_step: one.trained_at_step ?? "–", level: one.level, part: one.part, reward: format(one.reward), turns: one.turns,
      tokens: one.tokens, tool_errors: one.tool_errors, stop_reason: one.stop_reason,
    };
    for (const [name, text] of Object.entries(texts)) {
      const cell = row.querySelector(`[data-cell="${name}"]`);
      if (cell) cell.textContent = text;
    }
    for (const tag of row.querySelectorAll("[data-change]")) {
      const count = one[tag.dataset.change] ?? 0;
      tag.hidden = count < Number(tag.dataset.least ?? 1);
      tag.querySelector("b").textContent = count;
    }
    const held = row.querySelector('[data-cell="quarantine"]');
    held.hidden = !one.quarantine;
    held.className = `tag ${{ benign: "good", malicious: "bad" }[one.quarantine] ?? "warn"}`;
    held.textContent = one.quarantine === "pending" ? "quarantined" : one.quarantine ?? "";
    const link = row.querySelector("a");
    link.href = this.box.dataset.url + encodeURIComponent(one.id) + "/";
    const outcome = row.querySelector('[data-cell="outcome"]');
    outcome.textContent = one.success ? "right" : "wrong";
    outcome.className = one.success ? "tag good" : "tag bad";
    row.classList.add("new-row");
    return row;
  }
}

const WITH_CHANGE = {
  any: (one) => one.changes > 0 || one.masked > 0,
  repaired: (one) => one.repaired > 0,
  segments: (one) => one.segments > 1,
  prefilled: (one) => one.prefilled > 0,
  masked: (one) => one.masked > 0,
  none: (one) => !one.changes && !one.masked,
};

function passes(one, filter) {
  if (filter.purpose && one.purpose !== filter.purpose) return false;
  if (filter.outcome && one.success !== (filter.outcome === "right")) return false;
  if (filter.errors === "some" && !one.tool_errors) return false;
  if (filter.errors === "none" && one.tool_errors) return false;
  if (filter.change && !WITH_CHANGE[filter.change](one)) return false;
  if (filter.end && one.stop_reason !== filter.end) return false;
  if (filter.quarantine && (filter.quarantine === "quarantined" ? !one.quarantine : one.quarantine !== filter.quarantine)) return false;
  if (filter.level && one.level !== Number(filter.level)) return false;
  if (filter.part && one.part !== filter.part) return false;
  if (filter.step !== "" && filter.step != null && ![sampledForStep(one), one.trained_at_step].includes(Number(filter.step))) return false;
  if (filter.reward_min !== "" && filter.reward_min != null && one.reward < Number(filter.reward_min)) return false;
  return !(filter.reward_max !== "" && filter.reward_max != null && one.reward > Number(filter.reward_max));
}
