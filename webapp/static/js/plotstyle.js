/* What all charts look like in the current theme. */

import { colour } from "./theme.js";

export const touch = matchMedia("(pointer: coarse)");
export const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false };

/** A zoom chooses steps; the height follows what is in sight, so nobody drags it. */
export function baseLayout() {
  const axis = {
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line-strong"), zeroline: false,
    tickfont: { size: 11, color: colour("text-3") },
  };
  return {
    xaxis: { ...axis, showgrid: false, fixedrange: touch.matches },
    yaxis: { ...axis, fixedrange: true, automargin: true, ticklabeloverflow: "allow", ticklabelstandoff: 4 }, // a mark at step 0 covers no name
    layout: {
      margin: { l: 40, r: 20, t: 10, b: 26 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colour("text-2") },
      showlegend: false, hovermode: "x", dragmode: touch.matches ? false : "zoom", barmode: "stack",
    },
  };
}

/** Tells `onZoom` of a drag over steps, and of a double click with null. */
export function listenToZoom(plot, onZoom) {
  plot.on("plotly_doubleclick", () => onZoom(null));
  plot.on("plotly_relayout", (changed) => {
    const [from, to] = [changed["xaxis.range[0]"], changed["xaxis.range[1]"]];
    if (from == null) return;
    onZoom(to - from < 2 ? [Math.max(0, Math.floor(from)), Math.ceil(to)] : [Math.max(0, from), to]);
  });
}
