/* The number of open alerts, live on every page, and the event that lists of alerts follow: `alerts-changed`. */

import { LiveRun } from "./live.js";
import { saySignedOut } from "./session.js";
import { setClock } from "./times.js";

/** Reconnects as a run's connection does; its frames carry alerts, counts and the cursor to come back with. */
class LiveAlerts extends LiveRun {
  receive(frame) {
    this.heardAt = Date.now();
    this.attempts = 0;
    const isNews = frame.alerts.length || frame.change !== this.change;
    this.change = frame.change;
    this.cursor = Math.max(this.cursor, frame.after);
    setClock(frame.now);
    this.say("live");
    if (isNews) this.onFrame(frame);
  }
}

function show({ open }) {
  for (const badge of document.querySelectorAll("[data-open-alerts]")) {
    badge.hidden = !open;
    badge.textContent = open > 999 ? "999+" : open;
  }
  document.body.dispatchEvent(new CustomEvent("alerts-changed"));
}

export function ring() {
  const bell = document.querySelector("[data-bell]");
  if (!bell) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  new LiveAlerts({
    url: `${scheme}://${location.host}/ws/alerts`,
    after: Number(bell.dataset.bell),
    onFrame: show,
    onStatus: (status) => {
      document.documentElement.dataset.alerts = status;
      if (status === "signed-out") saySignedOut();
    },
  }).start();
}
