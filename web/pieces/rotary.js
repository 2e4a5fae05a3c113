// Rotary positions: a query and a key are turned, pair by pair, by angles that grow with their places.
// The rules are those of phase2_attention_kvcache/model/positions.py.

import { box, button, element, shape, showCounts, thousands } from "./common.js";

const STYLE = `
.rot .dials { display: grid; grid-template-columns: repeat(auto-fill, minmax(92px, 1fr)); gap: 8px; margin: 10px 0; text-align: center }
.rot svg { display: block; margin: 0 auto; width: 84px; height: 84px } .rot .face { fill: var(--faint); stroke: var(--line) }
.rot .query { stroke: var(--blue) } .rot .key { stroke: var(--orange); stroke-dasharray: 5 3 } .rot .query, .rot .key { stroke-width: 3 }
.rot input[type=number] { width: 6em; border: 1px solid var(--muted); border-radius: 4px; padding: 2px 4px }
.rot .blue { color: var(--blue) } .rot .orange { color: var(--orange) }`;

const HIGHEST = 100_000, THETA = 10_000;

// How far pair i turns from one place to the next, in radians.
const turn = (i, size) => THETA ** ((-2 * i) / size);

// Number i of the first half and number i of the second are a pair.
function turned(vector, place) {
  const half = vector.length / 2, out = [...vector];
  for (let i = 0; i < half; i++) {
    const angle = place * turn(i, vector.length), [a, b] = [vector[i], vector[half + i]];
    out[i] = a * Math.cos(angle) - b * Math.sin(angle);
    out[half + i] = b * Math.cos(angle) + a * Math.sin(angle);
  }
  return out;
}

// data: { query, key: vectors, places: [of the query, of the key] }.
function render({ data, el }) {
  const { query, key, places } = data;
  const field = (label, at) => {
    const input = element("input", { type: "number", min: "0", max: String(HIGHEST), value: String(at), "aria-label": label });
    input.addEventListener("input", draw);
    return input;
  };
  const queryPlace = field("place of the query", places[0]), keyPlace = field("place of the key", places[1]);
  const moved = (by) => () => { for (const input of [queryPlace, keyPlace]) input.value = String(placeOf(input) + by); draw(); };
  const counts = element("div", { class: "counts", "aria-live": "polite" }), dials = element("div", { class: "dials" });
  el.append(box("rot", STYLE, element("div", { class: "bar" },
    element("label", {}, element("b", { class: "blue" }, "query"), " at place ", queryPlace), element("label", {}, element("b", { class: "orange" }, "key"), " at place ", keyPlace),
    button("near", "both on by 1", moved(1)), button("far", "both on by 1,000", moved(1000))), counts,
    element("small", {}, "one dial for each pair of numbers: blue the query's hand, orange and dashed the key's"), dials));

  function placeOf(input) { return Math.max(0, Math.min(HIGHEST, Math.trunc(Number(input.value)) || 0)); }

  function draw() {
    const at = [placeOf(queryPlace), placeOf(keyPlace)], half = query.length / 2;
    const score = (q, k) => q.reduce((sum, x, i) => sum + x * k[i], 0) / Math.sqrt(query.length);
    const q = turned(query, at[0]), k = turned(key, at[1]), now = score(q, k);
    showCounts(counts, [["distance", thousands(at[0] - at[1])], ["score", now.toFixed(3)], ["score if nothing were turned", score(query, key).toFixed(3)]]);
    const hand = (kind, vector, i) => {
      const angle = Math.atan2(vector[half + i], vector[i]);
      return shape("line", { class: kind, x1: 42, y1: 42, x2: 42 + 36 * Math.cos(angle), y2: 42 - 36 * Math.sin(angle) });
    };
    dials.replaceChildren(...Array.from({ length: half }, (_, i) => element("div", {},
      shape("svg", { viewBox: "0 0 84 84", role: "img", "aria-label": `pair ${i + 1}` }, shape("circle", { class: "face", cx: 42, cy: 42, r: 40 }), hand("query", q, i), hand("key", k, i)),
      element("small", {}, `a turn in ${thousands(Math.round((2 * Math.PI) / turn(i, query.length)))}`))));
  }
  draw();
}

export default { render };
