/* A list that is fetched again when there is something new.

   One request at a time, and the newest counts: what comes while the list is on its way is fetched behind it, and an
   answer to what was asked before (the filter was changed since) is dropped.  The list's address is its `data-list`. */

export class Refetch {
  /** `isHeld()`: whether somebody is at something in the list that must not be exchanged; `release()` when no more. */
  constructor(id, { waitMs, isHeld }) {
    Object.assign(this, { id, waitMs, isHeld });
    this.asked = null;
    this.isStale = false;
    document.body.addEventListener("htmx:beforeSend", ({ detail }) => detail.target.id === id && this.follow(detail.xhr));
    document.body.addEventListener("htmx:beforeSwap", ({ detail }) => detail.target.id === id && this.judge(detail));
  }

  /** Fetch the list soon, once for all that comes until then. */
  changed() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.fetch();
    }, this.waitMs);
  }

  release() {
    if (this.isStale) this.changed();
  }

  fetch() {
    const box = document.getElementById(this.id);
    const list = box.querySelector("[data-list]");
    this.isStale = this.asked !== null || !list || this.isHeld();
    if (this.isStale) return;
    const failed = () => {}; // htmx has an event for it
    htmx.ajax("GET", list.dataset.list, { source: box, target: box }).catch(failed);
  }

  /** Whoever asked for the list: the page, a filter or a link. */
  follow(xhr) {
    this.asked = xhr;
    this.isStale = false;
    xhr.addEventListener("loadend", () => {
      if (this.asked !== xhr) return;
      this.asked = null;
      this.release();
    });
  }

  judge(detail) {
    const isHeld = detail.requestConfig.elt.id === this.id && this.isHeld();
    if (detail.xhr === this.asked && !isHeld) return;
    detail.shouldSwap = false;
    this.isStale ||= isHeld;
  }
}
