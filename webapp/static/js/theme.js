/* Dark or light: the system decides until the person does.  The choice lives in a cookie, so the
   server renders it and no page flashes in the wrong colours. */

const YEAR_SECONDS = 31536000;
const system = matchMedia("(prefers-color-scheme: dark)");

function currentTheme() {
  return document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
}

export function toggleTheme() {
  const theme = currentTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=/; max-age=${YEAR_SECONDS}; samesite=lax`;
  announce();
}

function announce() {
  for (const button of document.querySelectorAll("[data-theme-toggle]")) {
    button.setAttribute("aria-pressed", String(currentTheme() === "dark"));
  }
  document.dispatchEvent(new CustomEvent("themechange"));
}

/** The computed value of a colour variable, as rgb(): charts cannot read light-dark(). */
export function colour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export function watchTheme() {
  for (const button of document.querySelectorAll("[data-theme-toggle]")) button.addEventListener("click", toggleTheme);
  system.addEventListener("change", announce);
  announce();
}
