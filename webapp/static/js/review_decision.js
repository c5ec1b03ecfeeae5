/* 1 and 2 rule on a quarantined trajectory, or on many, after a question. */

import { onKey } from "./keys.js";

/** `place()` is an element with `data-review` (where to) and `data-trajectory`, or what `ask` takes, or nothing. */
export function reviewByKeys(place) {
  onKey("1", "Mark it benign", () => ask(place(), "benign"));
  onKey("2", "Mark it malicious", () => ask(place(), "malicious"));
}

/** One trajectory, as an element says it. */
function ofElement(element) {
  const { review, trajectory, within, ended } = element.dataset;
  return { action: review, what: trajectory, within, hasEnded: ended !== undefined, note: element.elements?.note?.value ?? "", fields: [] };
}

/** `about` is such an element, or {action, what, fields} for many; `fields` are sent with the verdict. */
export function ask(about, verdict) {
  const dialog = document.getElementById("review-dialog");
  if (!about || !dialog) return;
  const { action, what, within, hasEnded = false, note = "", fields } = about instanceof Element ? ofElement(about) : about;
  const form = dialog.querySelector("form");
  form.action = action;
  form.elements.verdict.value = verdict;
  form.elements.note.value = note;
  dialog.querySelector("[data-fields]").replaceChildren(...fields.map(hidden), hidden(["decision", verdict]));
  dialog.querySelector("#review-title").textContent = `Mark ${what} ${verdict}?`;
  for (const text of dialog.querySelectorAll("[data-verdict]")) text.hidden = !within || hasEnded || text.dataset.verdict !== verdict;
  dialog.querySelector("[data-after-end]").hidden = !hasEnded;
  dialog.querySelector("[data-many]").hidden = Boolean(within);
  dialog.querySelector("[data-within-steps]").textContent = within ?? "";
  const confirm = dialog.querySelector("#review-confirm");
  confirm.textContent = verdict === "benign" ? "Mark benign" : "Mark malicious";
  confirm.className = verdict === "benign" ? "button primary" : "button danger solid";
  dialog.showModal();
  confirm.focus();
}

function hidden([name, value]) {
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name, value });
  return field;
}
