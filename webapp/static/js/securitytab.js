/* What a run's sandboxes tried to reach: fetched when its tab is opened, and again when there is something new.

   The lists are the server's.  Somebody who types in the filter, or looks into first bytes, is not interrupted. */

const TELL_MS = 1000;

export class SecurityTab {
  constructor(box) {
    this.box = box;
    document.body.addEventListener("alerts-changed", () => this.changed());
    document.body.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target === box) this.note(event.detail.pathInfo.finalRequestPath);
    });
    box.addEventListener("focusout", () => this.missed && this.changed());
  }

  open() {
    if (this.opened) return this.path && this.note();
    this.opened = true;
    htmx.ajax("GET", this.box.dataset.url + location.search, { target: this.box, swap: "innerHTML" });
  }

  /** The filter stands in the address, as that of the trajectories does. */
  note(path = this.path) {
    this.path = path;
    if (this.box.closest("[data-panel]").hidden) return;
    const chosen = [...new URLSearchParams(path.split("?")[1])].filter(([name, value]) => value && name !== "tab");
    history.replaceState(null, "", `?${new URLSearchParams([["tab", "security"], ...chosen])}`);
  }

  changed() {
    if (!this.opened) return;
    this.telling ??= setTimeout(() => {
      this.telling = null;
      this.missed = this.box.querySelector("form :focus, details[open]") !== null;
      if (!this.missed) htmx.trigger(document.body, "run-security");
    }, TELL_MS);
  }
}
