/* What a page says and does once its session has ended, perhaps in another tab. */

let isOver = false;

/** What was typed stays where it is: the reader decides when to leave. */
export function saySignedOut() {
  isOver = true;
  const notice = document.getElementById("signed-out");
  if (!notice) return;
  notice.querySelector("a").search = new URLSearchParams({ next: location.pathname + location.search });
  notice.hidden = false;
}

/** Fragments are refused with 401 then (webapp/pages/pieces.py), and not asked for again. */
export function watchSession() {
  document.addEventListener("htmx:responseError", ({ detail }) => detail.xhr.status === 401 && saySignedOut());
  document.addEventListener("htmx:beforeRequest", (event) => isOver && event.preventDefault());
}
