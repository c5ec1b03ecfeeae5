/* Tabs that are links: with this script they switch in place, and the address follows. */

export function switchTabs(onShow) {
  const links = [...document.querySelectorAll("[data-tab]")];

  function show(name) {
    for (const link of links) {
      if (link.dataset.tab === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    for (const panel of document.querySelectorAll("[data-panel]")) panel.hidden = panel.dataset.panel !== name;
    onShow(name);
  }

  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.replaceState(null, "", link.href);
      show(link.dataset.tab);
    });
  }
  onShow(links.find((link) => link.hasAttribute("aria-current"))?.dataset.tab);
  return { show: (name) => links.find((link) => link.dataset.tab === name)?.click(), names: links.map((link) => link.dataset.tab) };
}
