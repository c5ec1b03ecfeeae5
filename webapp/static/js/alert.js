/* The page of one alert by keyboard. */

import { onKey } from "./keys.js";
import { reviewByKeys } from "./review_decision.js";

const click = (id) => document.getElementById(id)?.click();

onKey("j", "Older alert", () => click("next"));
onKey("k", "Newer alert", () => click("previous"));
onKey("Enter", "Go to the turn", (event) => (event.target.closest?.("a, button, summary") ?? document.getElementById("turn-link"))?.click());
onKey("a", "Acknowledge", () => click("acknowledge"));
onKey("u", "Back to the alerts", () => document.querySelector(".crumbs a").click());
if (document.getElementById("review-dialog")) reviewByKeys(() => document.querySelector("form[data-review]"));
