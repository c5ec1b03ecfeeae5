/* The inbox by keyboard.  The chosen row stays chosen when the list is fetched again. */

import { onKey } from "./keys.js";
import { ruleByKeys } from "./ruling.js";

const box = document.getElementById("alerts");
let chosen = null;

const rows = () => [...box.querySelectorAll("tr[data-alert]")];
const row = () => rows().find((one) => one.dataset.alert === chosen);

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

onKey("j", "Next alert", () => move(1));
onKey("k", "Previous alert", () => move(-1));
onKey("Enter", "Open the alert", (event) => (event.target.closest?.("a, button") ?? row()?.querySelector("a"))?.click());
ruleByKeys(row);
box.addEventListener("focusin", (event) => {
  const one = event.target.closest("tr[data-alert]");
  if (one && one.dataset.alert !== chosen) choose(one);
});
document.body.addEventListener("htmx:afterSwap", () => row()?.classList.add("is-selected"));
