/* Keeps every <time> on the page relative and true: "3 min ago" becomes "4 min ago".

   What the server wrote is true for now; by the first time that this looks, it knows the server's clock. */

let skew = 0; // seconds by which the server's clock is ahead of this machine's

/** The server's time, in Unix seconds; everything that pages show happened on its clock. */
export const now = () => Date.now() / 1000 + skew;

export function setClock(serverSeconds) {
  skew = serverSeconds - Date.now() / 1000;
}

const STEPS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function distance(seconds) {
  const size = Math.abs(seconds);
  if (size < 5) return "just now";
  const [unit, name] = STEPS.find(([unit]) => size >= unit);
  const text = `${Math.floor(size / unit)} ${name}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.1) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 60) return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const two = (value) => String(value).padStart(2, "0");
  return minutes < 60 ? `${minutes}m ${two(Math.floor(seconds % 60))}s` : `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
}

/** A <time> for a moment: ISO text or Unix seconds. */
export function timeElement(moment) {
  const date = typeof moment === "number" ? new Date(moment * 1000) : new Date(moment);
  const element = document.createElement("time");
  element.dateTime = date.toISOString();
  element.title = date.toUTCString();
  element.textContent = distance(now() - date / 1000);
  return element;
}

function refresh() {
  for (const element of document.querySelectorAll("time[datetime]:not([data-fixed])")) {
    const text = distance(now() - new Date(element.dateTime) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function keepTimesTrue() {
  setInterval(refresh, 5000);
}
