/* What a run's boxes tried to reach: fetched when its tab is opened, and again when there is something new.

   The lists are the server's.  Somebody who types in the filter, or looks into first bytes, is not interrupted. */

const TELL_MS = 1000;

export class SecurityTab {
  constructor(box) {
    this.box = box;
    document.body.addEventListener("alerts-changed", () => this.changed());
    box.addEventListener("focusout", () => this.missed && this.changed());
  }

  open() {
    if (this.opened) return;
    this.opened = true;
    htmx.ajax("GET", this.box.dataset.url, { target: this.box, swap: "innerHTML" });
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
