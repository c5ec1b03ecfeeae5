/* 1 and 2 rule on a quarantined trajectory, after a question. */

import { onKey } from "./keys.js";

/** `place()` is an element with `data-ruling` (where to) and `data-trajectory`, or nothing. */
export function ruleByKeys(place) {
  onKey("1", "Rule it benign", () => ask(place(), "benign"));
  onKey("2", "Rule it malicious", () => ask(place(), "malicious"));
}

function ask(about, verdict) {
  const dialog = document.getElementById("ruling-dialog");
  if (!about || !dialog) return;
  const form = dialog.querySelector("form");
  form.action = about.dataset.ruling;
  form.elements.verdict.value = verdict;
  form.elements.note.value = about.elements?.note?.value ?? "";
  dialog.querySelector("#ruling-title").textContent = `Rule ${about.dataset.trajectory} ${verdict}?`;
  for (const text of dialog.querySelectorAll("[data-verdict]")) text.hidden = text.dataset.verdict !== verdict;
  dialog.querySelector("[data-within-steps]").textContent = about.dataset.within;
  const confirm = dialog.querySelector("#ruling-confirm");
  confirm.textContent = verdict === "benign" ? "Rule benign" : "Rule malicious";
  confirm.className = verdict === "benign" ? "button primary" : "button danger solid";
  dialog.showModal();
  confirm.focus();
}
