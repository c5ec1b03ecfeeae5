/* Explains the words of the page: a button with `data-term` says what it means on hover, on focus and on a tap.

   Escape or leaving it closes the explanation; the pointer may rest on the explanation itself. */

const GAP = 6;

export function explainTerms(tip, glossary) {
  let button = null;
  const termIn = (target) => target.closest?.("[data-term]");

  function close() {
    button?.removeAttribute("aria-describedby");
    button = null;
    tip.hidden = true;
  }

  function open(next) {
    const words = glossary[next.dataset.term];
    if (!words || button === next) return;
    close();
    button = next;
    tip.querySelector("b").textContent = words.name;
    tip.querySelector("p").textContent = words.meaning;
    tip.hidden = false;
    button.setAttribute("aria-describedby", tip.id);
    const { left, bottom, top } = button.getBoundingClientRect();
    const below = bottom + GAP + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${below ? bottom + GAP : top - GAP - tip.offsetHeight}px`;
  }

  document.addEventListener("pointerover", ({ target }) => {
    if (termIn(target)) open(termIn(target));
    else if (button && button !== document.activeElement && !tip.contains(target)) close();
  });
  document.addEventListener("focusin", ({ target }) => { if (termIn(target)) open(termIn(target)); else close(); });
  document.addEventListener("click", ({ target }) => { if (termIn(target)) open(termIn(target)); else if (!tip.contains(target)) close(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  addEventListener("scroll", close, { passive: true });
}
