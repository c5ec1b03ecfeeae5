/* One turn after the other, in order of time, with the others dimmed; the address names the turn that is shown. */

import { onKey } from "./keys.js";

const turns = document.getElementById("turns");
const numberOf = (turn) => Number(turn.id.split("-")[1]);
const ordered = [...turns.querySelectorAll(".turn")].sort((left, right) => numberOf(left) - numberOf(right));

function shown() {
  return ordered.findIndex((turn) => turn.classList.contains("is-shown"));
}

function mark(turn) {
  for (const other of ordered) other.classList.toggle("is-shown", other === turn);
  for (const link of document.querySelectorAll("#outline .outline-turn")) {
    if (turn && link.hash === `#${turn.id}`) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  turns.classList.toggle("is-replayed", Boolean(turn));
}

function show(turn) {
  mark(turn);
  history.replaceState(history.state, "", `#${turn.id}`);
  turn.scrollIntoView({ block: "center" });
  turn.querySelector(".tokens").focus({ preventScroll: true });
}

/** Begins with the turn that the address names, or with the first one. */
function step(by) {
  const at = shown();
  if (at >= 0) return show(ordered[Math.max(0, Math.min(ordered.length - 1, at + by))]);
  return show(ordered.find((turn) => `#${turn.id}` === location.hash) ?? ordered[0]);
}

if (ordered.length > 1) {
  onKey("n", "Replay: next turn", () => step(1));
  onKey("p", "Replay: previous turn", () => step(-1));
  document.getElementById("replay").hidden = false;
  document.getElementById("replay-next").addEventListener("click", () => step(1));
  document.getElementById("replay-previous").addEventListener("click", () => step(-1));
  addEventListener("keydown", (event) => { if (event.key === "Escape") mark(null); });
  addEventListener("hashchange", () => { if (shown() >= 0) mark(ordered.find((turn) => `#${turn.id}` === location.hash)); });
}
