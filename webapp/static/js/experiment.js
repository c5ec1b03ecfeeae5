/* The spec editor: keys, the way from a complaint to its field, the search of presets, and a warning before typed changes are lost. */

import { onKey } from "./keys.js";

let typed = false;
const editor = document.getElementById("editor");

/** Opens what the control is folded into, and goes there. */
function reveal(control) {
  for (let at = control; at; at = at.parentElement) {
    if (at.matches("details")) at.open = true;
  }
  control.focus();
  control.scrollIntoView({ block: "center" });
}

function complainedAbout(link) {
  return document.getElementById(link.hash.slice(1));
}

function search(box) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  const presets = editor.querySelectorAll(".preset-list > li");
  for (const preset of presets) {
    preset.hidden = !words.every((word) => preset.dataset.words.includes(word));
    if (!preset.hidden) found += 1;
  }
  for (const family of editor.querySelectorAll(".preset-family")) {
    family.hidden = !family.querySelector("li[data-words]:not([hidden])");
  }
  const said = found ? `${found} of ${presets.length} presets` : "No preset matches; use fewer words.";
  document.getElementById("presets-found").textContent = words.length ? said : "";
}

editor.addEventListener("input", ({ target }) => {
  if (target.id === "preset-search") search(target);
  else typed = true;
});
editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.id === "preset-search") event.preventDefault(); // it would save
});
editor.addEventListener("click", (event) => {
  const link = event.target.closest(".problems a");
  if (!link) return;
  event.preventDefault();
  reveal(complainedAbout(link));
});
editor.addEventListener("submit", () => { typed = false; });
addEventListener("beforeunload", (event) => {
  if (typed) event.preventDefault();
});
const first = document.querySelector(".problems a");
if (first) reveal(complainedAbout(first));
onKey("m", "Form or TOML", () => editor.querySelector('.editor-bar [aria-pressed="false"]').click());
