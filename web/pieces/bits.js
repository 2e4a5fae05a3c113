// A model in fewer bits. All settings were worked out by Python on the real model (web/pieces/bits.py).

import { box, element, shape, showCounts } from "./common.js";

const STYLE = `
.bit .says { margin: 10px 0; min-height: 3.2em } .bit .says b { font-weight: 600 } .bit .says .other { background: var(--orange-tint); border-radius: 3px }
.bit .lower { display: flex; gap: 12px 36px; flex-wrap: wrap; margin-top: 8px } .bit svg { display: block; background: var(--faint); border-radius: 4px; max-width: 100%; height: auto }`;

function render({ data, el }) {
  const slider = element("input", { type: "range", min: "0", max: String(data.bits.length - 1), value: String(data.bits.indexOf(data.start.bits)), "aria-label": "bits" });
  slider.addEventListener("input", draw);
  const groups = element("select", { "aria-label": "a scale for" });
  data.groups.forEach((g) => groups.append(element("option", { value: String(g) }, g ? `each ${g} weights` : "a whole row")));
  groups.value = String(data.start.group);
  groups.addEventListener("change", draw);
  const shown = element("b", { "data-name": "bits" }), says = element("div", { class: "says", "aria-live": "polite" });
  const counts = element("div", { class: "counts" });
  const grid = shape("svg", { viewBox: "0 0 400 150", width: 400, role: "img", "aria-label": "weights and their codes" });
  const curve = shape("svg", { viewBox: "0 0 300 150", width: 300, role: "img", "aria-label": "bits per byte for each number of bits" });
  const frame = box("bit", STYLE, element("div", { class: "bar" }, element("label", {}, "bits ", slider, " ", shown), element("label", {}, "a scale for ", groups)), says, counts,
    element("div", { class: "lower" },
      element("div", {}, element("small", {}, `${data.weights.length} weights of the model (dots), and what codes stand for (lines)`), grid),
      element("div", {}, element("small", {}, "bits per byte; dashed: the model in full"), curve)));
  el.append(frame);

  function draw() {
    const bits = data.bits[Number(slider.value)], group = Number(groups.value);
    const row = data.settings.filter((s) => s.group === group), now = row.find((s) => s.bits === bits);
    shown.textContent = String(bits);
    let same = 0;
    while (same < now.said.length && now.said[same] === data.said[same]) same++;
    const joined = (tokens) => tokens.join("").replaceAll("\n", " ");
    says.replaceChildren(element("b", {}, data.prompt), element("span", { "data-name": "same" }, joined(now.said.slice(0, same))),
      element("span", { class: "other", "data-name": "other" }, joined(now.said.slice(same))));
    showCounts(counts, [["bits a weight, scales included", now.bits_a_weight.toFixed(2)], ["bits per byte", now.bits_per_byte.toFixed(3)],
      ["more than in full", `${(100 * (now.bits_per_byte / data.bits_per_byte - 1)).toFixed(2)}%`], ["tokens as in full", `${same} of ${data.said.length}`]]);

    const most = 1.15 * Math.max(...data.weights.map(Math.abs)), y = (w) => 75 - (70 * w) / most;
    grid.replaceChildren();
    for (const code of now.codes) if (Math.abs(code) <= most) grid.append(shape("line", { x1: 0, x2: 400, y1: y(code), y2: y(code), stroke: "var(--blue)", "stroke-width": bits > 6 ? 0.3 : 0.8 }));
    data.weights.forEach((w, i) => grid.append(shape("circle", { cx: 8 + (i * 384) / (data.weights.length - 1), cy: y(w), r: 3, fill: "var(--orange)" })));

    const top = Math.max(...data.settings.map((s) => s.bits_per_byte)), up = (b) => 142 - (130 * b) / top;
    curve.replaceChildren(shape("line", { x1: 0, x2: 300, y1: up(data.bits_per_byte), y2: up(data.bits_per_byte), stroke: "var(--ink)", "stroke-dasharray": "5 4" }));
    row.forEach((s, i) => curve.append(shape("rect", { x: 10 + 41 * i, width: 30, y: up(s.bits_per_byte), height: 142 - up(s.bits_per_byte), fill: s === now ? "var(--orange)" : "var(--blue)" })));
  }
  draw();
}

export default { render };
