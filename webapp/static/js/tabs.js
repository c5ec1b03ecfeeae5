/* Tabs that are links: with this script they switch in place, and the address follows. */

export function switchTabs(onShow) {
  const links = [...document.querySelectorAll("[data-tab]")];

  function show(name) {
    for (const link of links) {
      if (link.dataset.tab === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    for (const panel of document.querySelectorAll("[data-panel]")) panel.hidden = panel.dataset.panel !== name;
    bringIntoSight();
    onShow(name);
  }

  const current = () => links.find((link) => link.hasAttribute("aria-current"));

  /** Where the row is wider than the screen; the page itself stays where it is. */
  function bringIntoSight() {
    const strip = links[0].parentElement;
    const [row, tab] = [strip.getBoundingClientRect(), (current() ?? links[0]).getBoundingClientRect()];
    strip.scrollLeft += tab.left + tab.width / 2 - (row.left + row.width / 2);
  }

  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.replaceState(null, "", link.href);
      show(link.dataset.tab);
    });
  }
  bringIntoSight();
  onShow(current()?.dataset.tab);
  return { show: (name) => links.find((link) => link.dataset.tab === name)?.click(), names: links.map((link) => link.dataset.tab) };
}
