// Static and continuous batching: who holds which place of the batch in which step, and how long answers lie about.

import { COLORS, box, element, glide, showCounts, stale } from "./common.js";

const STYLE = `
.bat input[type=text] { width: min(26em, 100%); border: 1px solid var(--muted); border-radius: 5px; padding: 3px 6px }
.bat h4 { margin-bottom: 4px } .bat .places { display: grid; gap: 2px; overflow-x: auto; padding-bottom: 2px }
.bat .row { position: relative; height: 24px; background: var(--faint); border-radius: 2px }
.bat .row i { position: absolute; top: 0; bottom: 0; border-radius: 2px; font: 600 12px/24px system-ui; text-align: center; color: var(--paper); overflow: hidden;
  border-right: 1px solid var(--paper); box-sizing: border-box }
.bat .row i.waits { background: repeating-linear-gradient(45deg, var(--line), var(--line) 3px, transparent 3px, transparent 6px) }`;

const MOST_REQUESTS = 40, MOST_TOKENS = 1000;

// Each running request writes a token a step. Static: a batch begins when all of the last one are done, and only then
// are its answers handed out. Continuous: a place that is free is taken in the next step.
// Returns for each request { place, first, last, out }, steps counted from 1.
function serve(lengths, places, continuous) {
  const free = Array(places).fill(0), rows = [];  // of each place the last step in which it was busy
  lengths.forEach((length, number) => {
    if (!continuous && number % places === 0) free.fill(Math.max(...free));
    const place = free.indexOf(Math.min(...free));
    rows.push({ place, first: free[place] + 1, last: (free[place] += length) });
  });
  rows.forEach((row, number) => {
    const batch = Math.floor(number / places) * places;
    row.out = continuous ? row.last : Math.max(...rows.slice(batch, batch + places).map((r) => r.last));
  });
  return rows;
}

function render({ data, el }) {
  const input = element("input", { type: "text", value: data.lengths.join(" "), "aria-label": "tokens of each answer" });
  const places = element("input", { type: "range", min: "1", max: "8", value: String(data.places), "aria-label": "places" });
  const shown = element("b"), says = element("p", { class: "wrong", role: "status" }), all = element("div", { "aria-live": "polite" });
  for (const control of [input, places]) control.addEventListener("input", () => glide(all, draw));
  el.append(box("bat", STYLE, element("div", { class: "bar" }, element("label", {}, "tokens of each answer ", input), element("label", {}, "places in the batch ", places, " ", shown)), says, all));

  function draw() {
    const lengths = input.value.split(/[\s,;]+/).filter(Boolean).map(Number), size = Number(places.value);
    shown.textContent = String(size);
    const right = lengths.length && lengths.length <= MOST_REQUESTS && lengths.every((n) => Number.isInteger(n) && n >= 1 && n <= MOST_TOKENS);
    says.textContent = right ? "" : `Write 1 to ${MOST_REQUESTS} whole numbers from 1 to ${MOST_TOKENS}, such as 12 3 20.`;
    stale(input, !right);
    if (!right) return;
    all.replaceChildren();
    const ways = [["static", serve(lengths, size, false)], ["continuous", serve(lengths, size, true)]];
    const end = Math.max(...ways.flatMap(([, rows]) => rows.map((r) => r.last)));
    const total = lengths.reduce((a, b) => a + b, 0);
    for (const [way, rows] of ways) {
      const steps = Math.max(...rows.map((r) => r.last)), lines = Array.from({ length: size }, () => element("div", { class: "row" }));
      const span = (from, to) => `left:${(100 * from) / end}%;width:${(100 * (to - from)) / end}%`;
      rows.forEach((row, number) => {
        const name = String.fromCharCode(65 + (number % 26));
        lines[row.place].append(element("i", { "data-glide": `${way} ${number}`, "data-steps": `${row.first} ${row.last} ${row.out}`, title: `${name}: steps ${row.first} to ${row.last}, handed out after ${row.out}`,
          style: `${span(row.first - 1, row.last)};background:${COLORS[number % COLORS.length]}` }, name));
        if (row.out > row.last) lines[row.place].append(element("i", { class: "waits", title: `${name} is written, and waits`, style: span(row.last, row.out) }));
      });
      const counts = element("div", { class: "counts" });
      showCounts(counts, [["steps", steps], ["places that stood empty", `${Math.round(100 * (1 - total / (size * steps)))}%`],
        ["steps until an answer is handed out, on average", (rows.reduce((sum, r) => sum + r.out, 0) / rows.length).toFixed(1)]]);
      all.append(element("div", { "data-way": way }, element("h4", {}, way), element("div", { class: "places" }, ...lines), counts));
    }
  }
  draw();
}

export default { render };
