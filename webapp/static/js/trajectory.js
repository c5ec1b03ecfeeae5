/* The page of one trajectory: what colours the tokens, and what is known about the one under the pointer. */

import { onKey } from "./keys.js";
import { reviewByKeys } from "./review_decision.js";

const FACTS = [["id", "Token"], ["logprob", "Log-prob, sampled"], ["old", "Log-prob, trainer"], ["ratio", "Ratio"], ["advantage", "Advantage"], ["version", "Policy version"]];
const tip = document.getElementById("tip");
const turns = document.getElementById("turns");
const choices = [...document.querySelectorAll("a[data-colour]")];
let pointed = null;

function colourBy(name) {
  turns.dataset.colour = name;
  document.getElementById("scales").dataset.colour = name;
  for (const choice of choices) choice.setAttribute("aria-pressed", String(choice.dataset.colour === name));
  const address = new URL(location);
  address.searchParams.set("colour", name);
  history.replaceState(null, "", address);
  for (const link of document.querySelectorAll('#previous, #next, .members a')) {
    const target = new URL(link.href);
    target.searchParams.set("colour", name);
    link.href = target;
  }
}

function point(token) {
  pointed?.classList.remove("is-pointed");
  pointed = token;
  tip.hidden = !token;
  if (!token) return;
  token.classList.add("is-pointed");
  tip.firstElementChild.replaceChildren(...FACTS.flatMap(([name, label]) => {
    if (!token.dataset[name]) return [];
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    term.textContent = label;
    value.textContent = token.dataset[name];
    return [term, value];
  }));
  const box = token.getBoundingClientRect();
  const below = box.bottom + tip.offsetHeight + 12 < innerHeight;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
}

function move(event) {
  const forward = event.key === "ArrowRight";
  if (!forward && event.key !== "ArrowLeft") return;
  event.preventDefault();
  const all = [...event.currentTarget.querySelectorAll(".tok")];
  const at = all.indexOf(pointed) + (forward ? 1 : -1);
  point(all.at(Math.max(0, Math.min(all.length - 1, at))));
}

function next() {
  const current = choices.findIndex((choice) => choice.getAttribute("aria-pressed") === "true");
  colourBy(choices[(current + 1) % choices.length].dataset.colour);
}

for (const choice of choices) {
  choice.addEventListener("click", (event) => {
    event.preventDefault();
    colourBy(choice.dataset.colour);
  });
  choice.addEventListener("keydown", (event) => {
    if (event.key === " ") { event.preventDefault(); choice.click(); }
  });
}
turns.addEventListener("pointerover", (event) => point(event.target.closest(".tok")));
turns.addEventListener("pointerleave", () => point(null));
addEventListener("scroll", () => point(null), { passive: true });
for (const tokens of turns.querySelectorAll(".tokens")) {
  tokens.addEventListener("keydown", move);
  tokens.addEventListener("blur", () => point(null));
}
onKey("j", "Next trajectory", () => document.getElementById("next")?.click());
onKey("k", "Previous trajectory", () => document.getElementById("previous")?.click());
onKey("c", "Colour tokens by the next value", next);
if (document.getElementById("review-dialog")) reviewByKeys(() => document.querySelector("form[data-review]"));
onKey("u", "Back to the list", () => document.querySelector(".crumbs li:nth-child(3) a").click());
