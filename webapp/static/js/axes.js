/* Which part of an axis a chart shows, and what its ticks are called.  Pure: values in, Plotly's settings out. */

import { format } from "./numbers.js";

const EDGE = 0.01; // of the height, so that a line at 100 % is drawn whole
const ROOM = 0.06; // of the spread, above and below a curve
const MOST_TICKS = 5;
const LEAST_GAP = 0.13; // of the height, between the names of two ticks

const trimmed = (text) => text.replace(/(\.\d*?)0+(?=%|$)/, "$1").replace(/\.(?=%|$)/, "");

/** The whole name of a tick: 0.5%, 20%, 0.02, 1.00e-6. */
export function tickName(value, unit) {
  if (value === 0) return unit === "share" ? "0%" : "0";
  if (unit === "share") return `${Number((100 * value).toPrecision(3))}%`;
  const text = format(value);
  return /[e,]/.test(text) ? text : trimmed(text);
}

/** Steps to show: all there are; one step alone stands between its neighbours, none of them below 0. */
export function stepRange(steps) {
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  return first === last ? [Math.max(0, first - 1), first + 1] : [first, last];
}

/** Of the values that are finite: smallest, largest, smallest above 0, and whether one is 0. */
export function extentOf(lists) {
  const extent = { low: Infinity, high: -Infinity, least: Infinity, hasZero: false };
  for (const values of lists) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      extent.low = Math.min(extent.low, value);
      extent.high = Math.max(extent.high, value);
      if (value > 0) extent.least = Math.min(extent.least, value);
      if (value === 0) extent.hasZero = true;
    }
  }
  return extent;
}

/** Logarithms have no place for what is below 0, and nothing to show where all is 0. */
export function canBeLog({ low, high }) {
  return low >= 0 && high > 0;
}

function linearRange({ low, high }, unit) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const isFlat = high - low <= 1e-9 * size;
  if (unit === "share") {
    const top = isFlat ? 1 : Math.min(1, high + ROOM * (high - Math.min(0, low)));
    const bottom = Math.min(0, low);
    return [bottom - EDGE * (top - bottom), Math.max(top, high) + EDGE * (top - bottom)];
  }
  if (size === 0) return [0, 1];
  if (isFlat) return size < 1e300 ? [Math.min(0, 2 * low), Math.max(0, 2 * low)] : null;
  const room = ROOM * (high - low);
  if (!Number.isFinite(room)) return null;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/** For values of which none is below 0.  Zero stands half a decade below the last decade, with a tick of its own. */
function logAxis({ least, high, hasZero }, unit) {
  const top = unit === "share" && high <= 1 ? 0 : Math.log10(high);
  let bottom = Math.log10(least);
  const isNarrow = top - bottom < 1;
  bottom = isNarrow ? Math.min(bottom, top - 0.35) : Math.floor(bottom + 1e-9);
  const zeroAt = hasZero ? bottom - Math.max(0.3, 0.12 * (top - bottom)) : null;
  const values = logTicks(bottom, top);
  const room = EDGE * (top - (zeroAt ?? bottom)) * (unit === "share" ? 1 : 4);
  return {
    zero: hasZero ? 10 ** zeroAt : null,
    axis: {
      type: "log", tickmode: "array", range: [(zeroAt ?? bottom) - room * (hasZero ? 3 : 1), top + room],
      tickvals: hasZero ? [10 ** zeroAt, ...values] : values,
      ticktext: [...(hasZero ? [tickName(0, unit)] : []), ...values.map((value) => tickName(value, unit))],
    },
  };
}

/** 1, 2, 5, 10 where there is room for them, else decades, or every so many; never two names upon each other. */
function logTicks(bottom, top) {
  const gap = LEAST_GAP * (top - bottom);
  const within = (value) => Math.log10(value) >= bottom - 1e-6 && Math.log10(value) <= top + 1e-6;
  const hasRoom = (ticks) => ticks.every((tick, index) => !index || Math.log10(tick / ticks[index - 1]) >= gap);
  const decades = Array.from({ length: Math.ceil(top) - Math.floor(bottom) + 3 }, (_, index) => 10 ** (Math.floor(bottom) - 1 + index));
  const ticksOf = (parts) => decades.flatMap((decade) => parts.map((part) => Number((part * decade).toPrecision(1)))).filter(within);
  for (const parts of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const ticks = ticksOf(parts);
    if (ticks.length > 1 && ticks.length <= MOST_TICKS + 1 && hasRoom(ticks)) return ticks;
  }
  const rest = top - bottom < 2 ? evenTicks(10 ** bottom, 10 ** top) : ticksOf([1]);
  return rest.reverse().reduce((kept, tick) => (kept.length && Math.log10(kept[0] / tick) < gap ? kept : [tick, ...kept]), []);
}

/** Round numbers at equal distances, for less than a decade or two. */
function evenTicks(low, high) {
  const rough = (high - low) / MOST_TICKS;
  const decade = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((part) => part * decade >= rough) * decade;
  const first = Math.ceil(low / step - 1e-6);
  const count = Math.floor(high / step + 1e-6) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => Number(((first + index) * step).toPrecision(6)));
}

/** Settings of a value axis for the values in sight; `zero` is where a logarithmic axis draws what is 0. */
export function valueAxis(lists, { unit, log }) {
  const extent = extentOf(lists);
  if (extent.high === -Infinity) return { axis: { type: "linear", range: [0, 1] }, zero: null };
  if (log && canBeLog(extent)) return logAxis(extent, unit);
  const range = linearRange(extent, unit);
  const size = Math.max(Math.abs(extent.low), Math.abs(extent.high));
  const isOdd = size && (size < 1e-3 || size >= 1e15); // 1e-6 is not called 1µ
  const named = { share: ".3~%", count: "~s" }[unit] ?? "";
  const axis = { type: "linear", tickmode: "auto", nticks: MOST_TICKS, tickformat: named, exponentformat: isOdd ? "e" : "SI" };
  return { axis: { ...axis, ...(range ? { range, autorange: false } : { autorange: true }) }, zero: null };
}
