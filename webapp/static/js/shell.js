/* What every page does: theme, keys, times, dialogs, copy buttons. */

import { ring } from "./bell.js";
import { listenToKeys, onKey, showHelp } from "./keys.js";
import { watchSession } from "./session.js";
import { toggleTheme, watchTheme } from "./theme.js";
import { keepTimesTrue } from "./times.js";

const RESEND_MS = 10000;

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

/* A form that is on its way is not sent a second time; after a while one may, should the first be lost. */
function sendOnce() {
  const sent = new Set();
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event;
    if (form.getAttribute("method") !== "post" || event.defaultPrevented) return;
    if (sent.has(form)) return event.preventDefault();
    sent.add(form);
    submitter?.setAttribute("aria-busy", "true");
    const release = () => { sent.delete(form); submitter?.removeAttribute("aria-busy"); };
    setTimeout(release, RESEND_MS);
    addEventListener("pageshow", release, { once: true }); // back from the page that the form led to
  });
}

watchTheme();
watchSession();
keepTimesTrue();
openDialogs();
copyOnClick();
sendOnce();
followNav("r", "runs");
followNav("a", "alerts");
followNav("m", "models");
followNav("d", "datasets");
followNav("c", "conversations");
followNav("e", "experiments");
followNav("v", "environments");
followNav("t", "team");
onKey("/", "Search on this page", () => document.querySelector("[data-search]")?.focus());
onKey("t", "Dark or light", toggleTheme);
onKey("?", "This list", showHelp);
listenToKeys();
ring();
