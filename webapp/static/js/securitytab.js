/* What a run's sandboxes tried to reach: fetched when its tab is opened, and again when there is something new.

   The lists are the server's.  Somebody who types in the filter, or looks into first bytes, is not interrupted. */

import { Refetch } from "./refetch.js";

const GATHER_MS = 1000;

export class SecurityTab {
  constructor(box) {
    this.box = box;
    this.list = new Refetch(box.id, { waitMs: GATHER_MS, isHeld: () => box.querySelector("form :focus, details[open]") !== null });
    document.body.addEventListener("alerts-changed", () => this.changed());
    document.body.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target === box) this.note(event.detail.pathInfo.finalRequestPath);
    });
    box.addEventListener("focusout", () => this.list.release());
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
    if (this.opened) this.list.changed();
  }
}
