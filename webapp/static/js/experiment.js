/* The spec editor: keys, and a warning before typed changes are lost. */

import { onKey } from "./keys.js";

let typed = false;
const editor = document.getElementById("editor");

editor.addEventListener("input", () => { typed = true; });
editor.addEventListener("submit", () => { typed = false; });
addEventListener("beforeunload", (event) => {
  if (typed) event.preventDefault();
});
document.querySelector(".problems")?.focus();
onKey("m", "Form or TOML", () => editor.querySelector('.editor-bar [aria-pressed="false"]').click());
