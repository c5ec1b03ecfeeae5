/* The inbox by keyboard.  The chosen row, marks and opened groups stay when the list is fetched again. */

import { onKey } from "./keys.js";
import { Refetch } from "./refetch.js";
import { ask, reviewByKeys } from "./review_decision.js";

const GATHER_MS = 300;

const box = document.getElementById("alerts");
const marked = new Set();
const expanded = new Set();
let chosen = null;
let lastMarked = null;
let isMatching = false; // all that match are marked, also on other pages

const rows = () => [...box.querySelectorAll("tr[data-alert]")];
const row = () => rows().find((one) => one.dataset.alert === chosen);
const marks = () => [...box.querySelectorAll('input[name="like"]')];
const form = () => document.getElementById("decide");
let filter = form()?.dataset.filter;

function choose(one) {
  for (const other of rows()) other.classList.toggle("is-selected", other === one);
  chosen = one?.dataset.alert ?? null;
  one?.querySelector("a").focus({ preventScroll: true });
  one?.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const all = rows();
  const at = all.indexOf(row());
  choose(all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))]);
}

/* ---- marks ---- */

function mark(id, on) {
  if (on) marked.add(id);
  else marked.delete(id);
}

/** From the mark that was set last to this one, as with any list. */
function markUpTo(input) {
  const all = marks();
  const [from, to] = [all.findIndex((one) => one.value === lastMarked), all.indexOf(input)].sort((a, b) => a - b);
  for (const one of from < 0 ? [input] : all.slice(from, to + 1)) mark(one.value, input.checked);
}

function showMarks() {
  let alerts = 0;
  for (const input of marks()) {
    input.checked = marked.has(input.value);
    if (input.checked) alerts += Number(input.closest("tr").dataset.count);
  }
  const bulk = box.querySelector("[data-bulk]");
  if (!bulk) return;
  const all = bulk.querySelector('[name="matching"]');
  all.checked = isMatching;
  const groups = marks().filter((one) => one.checked).length;
  bulk.querySelector("[data-marked]").textContent = isMatching
    ? `All ${form().dataset.total} that match are marked.`
    : groups
      ? `${groups} row${groups === 1 ? "" : "s"} marked: ${alerts} alert${alerts === 1 ? "" : "s"}.`
      : "Mark rows to decide about all their alerts at once.";
  for (const button of bulk.querySelectorAll("button")) button.disabled = !groups && !isMatching && !row();
}

/** What a decision is about: the marked rows, else the chosen one. */
function about() {
  const one = row();
  const ids = marks().filter((input) => input.checked).map((input) => input.value);
  if (!isMatching && !ids.length) {
    if (!one || !("decides" in one.dataset)) return null;
    if (one.dataset.review) return one;
    ids.push(one.dataset.alert);
  }
  const given = [...new FormData(form())].filter(([name]) => !["like", "matching", "csrfmiddlewaretoken", "back"].includes(name));
  const fields = [...given, ...(isMatching ? [["matching", "1"]] : ids.map((id) => ["like", id]))];
  const alerts = isMatching ? Number(form().dataset.total) : countOf(ids);
  return { action: form().action, what: `${alerts} alert${alerts === 1 ? "" : "s"}`, fields };
}

function countOf(ids) {
  return rows().filter((one) => ids.includes(one.dataset.alert)).reduce((sum, one) => sum + Number(one.dataset.count), 0);
}

function acknowledge() {
  if (!isMatching && !marked.size) {
    if (!row() || !("decides" in row().dataset)) return;
    mark(chosen, true);
  }
  showMarks();
  form().requestSubmit(form().querySelector('button[value="acknowledge"]'));
}

/* ---- groups ---- */

function expand(link, on) {
  const target = document.getElementById(link.dataset.expands);
  link.setAttribute("aria-expanded", on);
  target.closest("tr").hidden = !on;
  const id = link.closest("tr").dataset.alert;
  if (on) expanded.add(id);
  else expanded.delete(id);
}

function restore() {
  row()?.classList.add("is-selected");
  const known = new Set(marks().map((one) => one.value));
  for (const id of marked) if (!known.has(id)) marked.delete(id);
  if (form()?.dataset.filter !== filter || !box.querySelector("[data-matching]:not([hidden])")) isMatching = false;
  filter = form()?.dataset.filter;
  for (const link of box.querySelectorAll("[data-expands]")) {
    if (!expanded.has(link.closest("tr").dataset.alert) || link.getAttribute("aria-expanded") === "true") continue;
    expand(link, true);
    // Of one source's requests only the last waits for the one under way: each group is a source of its own.
    htmx.ajax("GET", link.getAttribute("hx-get"), { source: link, target: `#${link.dataset.expands}`, swap: "innerHTML" });
  }
  showMarks();
}

onKey("j", "Next alert", () => move(1));
onKey("k", "Previous alert", () => move(-1));
onKey("x", "Mark the alert, or take the mark away", () => {
  if (!row() || !("decides" in row().dataset)) return;
  mark(chosen, !marked.has(chosen));
  lastMarked = chosen;
  showMarks();
});
onKey("o", "Show all alike", () => row()?.querySelector("[data-expands]")?.click());
onKey("Enter", "Open the alert", (event) => (event.target.closest?.("a, button") ?? row()?.querySelector("a"))?.click());
reviewByKeys(about);
onKey("a", "Acknowledge", acknowledge);

box.addEventListener("focusin", (event) => {
  const one = event.target.closest("tr[data-alert]");
  if (one && one.dataset.alert !== chosen && event.target.matches("a")) choose(one);
  showMarks();
});
box.addEventListener("click", (event) => {
  const link = event.target.closest("[data-expands]");
  if (link) expand(link, link.getAttribute("aria-expanded") !== "true");
  if (event.target.matches('input[name="like"]')) {
    if (event.shiftKey) markUpTo(event.target);
    else mark(event.target.value, event.target.checked);
    lastMarked = event.target.value;
    showMarks();
  }
  if (event.target.matches('input[name="matching"]')) {
    isMatching = event.target.checked;
    showMarks();
  }
});
box.addEventListener("submit", (event) => {
  const verdict = event.submitter?.value;
  if (event.target.id !== "decide" || !["benign", "malicious"].includes(verdict)) return;
  event.preventDefault();
  ask(about(), verdict);
});
document.body.addEventListener("htmx:afterSwap", (event) => event.detail.target === box && restore());

/* A row that is exchanged between the pressing and the letting go of a button is never clicked: the list waits. */
let isPressed = false;
const list = new Refetch(box.id, { waitMs: GATHER_MS, isHeld: () => isPressed });
document.body.addEventListener("alerts-changed", () => list.changed());
box.addEventListener("pointerdown", () => (isPressed = true));
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => setTimeout(() => {
    isPressed = false;
    list.release();
  }));
}
showMarks();
