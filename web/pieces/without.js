// Remove one choice: what small models came to that were trained without it. All numbers were measured, see
// phase2_attention_kvcache/story/trained_without.py.

import { box, button, element, shape, showCounts, thousands } from "./common.js";

const STYLE = `
.wit svg { display: block; width: 100%; max-width: 640px; margin: 8px 0 } .wit svg text { font: 12px system-ui; fill: var(--muted) }
.wit .with { fill: var(--blue); stroke: var(--blue) } .wit .gone { fill: var(--orange); stroke: var(--orange) } .wit .axis { stroke: var(--line) }
.wit path { fill: none !important; stroke-width: 2 } .wit path.gone { stroke-dasharray: 5 3 } .wit button[aria-pressed=true] { background: var(--orange-tint) }
.wit .blue { color: var(--blue) } .wit .orange { color: var(--orange) }`;

const WIDTH = 640, LEFT = 150, RIGHT = 20;
const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

// data: { recipes: [{ name, parameters, perplexities: [of each seed], losses: [of each ten steps] }], all, tokens_per_loss }.
function render({ data, el }) {
  const { recipes, all, tokens_per_loss } = data;
  const full = recipes.find((r) => r.name === all), others = recipes.filter((r) => r !== full);
  const buttons = others.map((r) => button(r.name, r.name, () => draw(r)));
  const counts = element("div", { class: "counts", "aria-live": "polite" }), dots = element("div"), curves = element("div");
  el.append(box("wit", STYLE, element("small", {}, "what stands in the place of a choice:"), element("div", { class: "bar" }, ...buttons), counts,
    element("h4", {}, "perplexity of unseen text, a dot for each seed ", element("small", {}, "further left is better")), dots,
    element("h4", {}, "loss while training ", element("small", {}, "nats a token, mean of the seeds")), curves));

  // From a value to a place on paper.
  const scale = (values, from, to) => {
    const low = Math.min(...values), high = Math.max(...values);
    return (x) => from + ((x - low) / (high - low)) * (to - from);
  };
  const every = recipes.flatMap((r) => r.perplexities), across = scale(every, LEFT, WIDTH - RIGHT);

  function drawDots(without) {
    const row = (r, kind, y) => [shape("text", { x: 0, y: y + 4 }, kind === "with" ? "with all choices" : "without"),
      ...r.perplexities.map((p) => shape("circle", { class: kind, cx: across(p), cy: y, r: 6, "fill-opacity": 0.6 }, shape("title", {}, p.toFixed(1))))];
    const ends = [Math.min(...every), Math.max(...every)];
    dots.replaceChildren(shape("svg", { viewBox: `0 0 ${WIDTH} 82`, role: "img", "aria-label": "perplexity by seed" }, ...row(full, "with", 14), ...row(without, "gone", 42),
      shape("line", { class: "axis", x1: LEFT, y1: 60, x2: WIDTH - RIGHT, y2: 60 }), ...ends.map((p, i) => shape("text", { x: across(p), y: 76, "text-anchor": i ? "end" : "start" }, p.toFixed(1)))));
  }

  function drawCurves(without) {
    const losses = recipes.flatMap((r) => r.losses), x = scale([1, full.losses.length], LEFT, WIDTH - RIGHT), y = scale(losses, 150, 10);
    const path = (r, kind) => shape("path", { class: kind, d: r.losses.map((loss, i) => `${i ? "L" : "M"}${x(i + 1).toFixed(1)} ${y(loss).toFixed(1)}`).join("") });
    const label = (value) => shape("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(1));
    curves.replaceChildren(shape("svg", { viewBox: `0 0 ${WIDTH} 176`, role: "img", "aria-label": "loss while training" }, path(full, "with"), path(without, "gone"),
      label(Math.max(...losses)), label(Math.min(...losses)), shape("line", { class: "axis", x1: LEFT, y1: 154, x2: WIDTH - RIGHT, y2: 154 }),
      shape("text", { x: WIDTH - RIGHT, y: 170, "text-anchor": "end" }, `${thousands(full.losses.length * tokens_per_loss)} tokens`)));
  }

  function draw(without) {
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.do === without.name));
    const more = without.perplexities.map((p, seed) => 100 * (p / full.perplexities[seed] - 1));
    showCounts(counts, [["perplexity with all", mean(full.perplexities).toFixed(1)], ["without", mean(without.perplexities).toFixed(1)],
      ["more", `${mean(more) < 0 ? "−" : "+"}${Math.abs(mean(more)).toFixed(1)}%`], ["seeds in which it is worse", `${more.filter((m) => m > 0).length} of ${more.length}`],
      ["parameters with all", thousands(full.parameters)], ["without it", thousands(without.parameters)]]);
    drawDots(without);
    drawCurves(without);
  }
  draw(others[0]);
}

export default { render };
