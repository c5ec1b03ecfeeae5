/* Numbers as the server writes them (webapp/pages/display.py). */

const NOTHING = "–";

export function format(value, unit = "number") {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (unit === "share") return `${(100 * value).toFixed(1)}%`;
  if (value === 0) return "0";
  if (Math.abs(value) < 0.001 || Math.abs(value) >= 1e9) return value.toExponential(2).replace("e+", "e");
  if (unit === "count" || Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3);
}
