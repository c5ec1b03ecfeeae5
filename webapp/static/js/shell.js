/* What every page does: theme, keys, times, dialogs, copy buttons. */

import { ring } from "./bell.js";
import { listenToKeys, onKey, showHelp } from "./keys.js";
import { toggleTheme, watchTheme } from "./theme.js";
import { keepTimesTrue } from "./times.js";

function followNav(letter, name) {
  const link = document.querySelector(`[data-go="${letter}"]`);
  if (link) onKey(`g ${letter}`, `Go to ${name}`, () => link.click());
}

function openDialogs() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens).showModal();
    if (event.target.closest("[data-closes]")) event.target.closest("dialog").close();
    if (event.target instanceof HTMLDialogElement) event.target.close();
  });
}

function copyOnClick() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copies]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copies);
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    const label = button.querySelector("span");
    const before = label.textContent;
    label.textContent = "Copied";
    setTimeout(() => { label.textContent = before; }, 1500);
  });
}

/* Selects that are filters apply at once; without scripts the form has its button. */
function submitOnChange() {
  document.addEventListener("change", (event) => {
    if (event.target.closest("form[data-submits-on-change]") && !event.target.closest("[hx-get]")) event.target.form.requestSubmit();
  });
}

watchTheme();
keepTimesTrue();
openDialogs();
copyOnClick();
submitOnChange();
followNav("r", "runs");
followNav("a", "alerts");
followNav("e", "experiments");
followNav("v", "environments");
followNav("t", "team");
onKey("/", "Search on this page", () => document.querySelector("[data-search]")?.focus());
onKey("t", "Dark or light", toggleTheme);
onKey("?", "This list", showHelp);
listenToKeys();
ring();
