// The way of the bytes of one decode step through an H100, operation by operation, to scale in time. The rules are those of
// web/pieces/bytes.py: counted from shapes and the card's data sheet, nothing is measured.

import { box, element, scrolling, short, showCounts, thousands } from "./common.js";

const STYLE = `
.way .strip { display: flex; height: 34px; background: var(--faint); border-radius: 3px; overflow: hidden; margin: 4px 0 }
.way .strip > * { min-width: 0; padding: 0; border: 0; border-right: 1px solid var(--paper); border-radius: 0; overflow: hidden; font: 12px/34px system-ui; white-space: nowrap; text-align: center; color: var(--paper); min-height: 0 }
.way .strip button:focus-visible { outline-offset: -3px; outline-color: var(--paper) } .way .strip .at { box-shadow: inset 0 -5px var(--ink) }
.way .of-weights { background: var(--blue) } .way .of-kv { background: var(--orange) } .way .of-arithmetic { background: var(--green) } .way .of-wire { background: var(--muted) }
.way .time { position: relative } .way .time i { position: absolute; top: 0; height: 34px; width: 2px; background: var(--ink) }
.way .key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 4px 0 12px; vertical-align: -1px }
.way .levels { width: 100%; min-width: 40em } .way .levels td:last-child { width: 30% } .way .levels td div { height: 12px; margin-top: 5px; min-width: 1px; border-radius: 2px; background: var(--blue) }
.way tr.busy td { background: var(--blue-tint) !important } .way tr.busy small { color: var(--ink) }
.way .says { min-height: 4.5em } .way input.moment { width: 100% }`;

const USERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], CONTEXTS = [64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], CARDS = [1, 2, 4, 8];
const MOMENTS = 1000, PLACES = 16;  // tokens in a block of the KV cache

// The parts of a layer, the LM head, and what all of them do together; seconds and bytes of one card.
function wayOf(shape, users, context, cards, { levels, rate, delay }) {
  const sent = cards > 1 ? (users * shape.vector * 2 * (cards - 1)) / cards : 0;
  const part = (o) => {
    const bytes = (2 * (o.weights + o.kv * users * context)) / cards, operations = (users * (o.per_user + o.per_token * context)) / cards;
    const reading = bytes / levels.HBM.rate, computing = operations / rate, wire = o.sums_up && cards > 1 ? sent / levels.NVLink.rate + delay : 0;
    return { name: o.name, bytes, operations, reading, computing, wire, work: Math.max(reading, computing), kind: computing > reading ? "arithmetic" : o.kv ? "kv" : "weights" };
  };
  const layer = shape.layer.map(part), head = part(shape.head), all = (what) => shape.layers * layer.reduce((sum, p) => sum + what(p), 0) + what(head);
  return { layer, head, seconds: all((p) => p.work + p.wire), bytes: all((p) => p.bytes), byArithmetic: all((p) => (p.kind === "arithmetic" ? p.work : 0)), sent: sent * 2 * shape.layers };
}

// The operation that is on its way at a moment: its layer (counted from 1; 0: the LM head), its number in the layer, and the
// bytes that have come out of HBM by then.
function at(way, layers, seconds) {
  let left = seconds, bytes = 0;
  for (let layer = 1; layer <= layers; layer++) {
    for (const [number, part] of way.layer.entries()) {
      const whole = part.work + part.wire;
      if (left < whole) return { layer, number, part, bytes: bytes + part.bytes * Math.min(1, left / part.work), summing: left > part.work };
      left -= whole;
      bytes += part.bytes;
    }
  }
  return { layer: 0, number: way.layer.length, part: way.head, bytes: bytes + way.head.bytes * Math.min(1, left / way.head.work), summing: false };
}

const time = (s) => (s >= 1e-3 ? `${short(1e3 * s)} ms` : s >= 1e-6 ? `${short(1e6 * s)} µs` : `${short(1e9 * s)} ns`);
const size = (b) => (b >= 1e12 ? `${short(b / 1e12)} TB` : b >= 1e9 ? `${short(b / 1e9)} GB` : b >= 1e6 ? `${short(b / 1e6)} MB` : `${short(b / 1e3)} kB`);

function render({ data, el }) {
  const { models, levels, start } = data;
  const name = element("select", { "aria-label": "model" });
  for (const m of Object.keys(models)) name.append(element("option", { value: m }, m));
  name.value = start.model;
  name.addEventListener("change", draw);
  const slide = (label, values, first) => {
    const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(first)), "aria-label": label }), shown = element("b");
    slider.addEventListener("input", draw);
    return { field: element("label", {}, label, " ", slider, " ", shown), value: () => { const now = values[Number(slider.value)]; shown.textContent = thousands(now); return now; } };
  };
  const users = slide("users", USERS, start.users), context = slide("tokens each", CONTEXTS, start.context), cards = slide("cards", CARDS, 1);
  const moment = element("input", { type: "range", class: "moment", min: "0", max: String(MOMENTS), value: "0", "aria-label": "moment of the step" });
  moment.addEventListener("input", look);
  const counts = element("div", { class: "counts" }), layerBar = element("div", { class: "strip" }), stepBar = element("div", { class: "strip" }), mark = element("i");
  const layerTitle = element("h4"), stepTitle = element("h4"), says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const table = element("table", { class: "levels" }), fits = element("p", { role: "status", "data-name": "fits" });
  const key = (kind, text) => element("span", {}, element("span", { class: `key of-${kind}` }), text);
  const shown = element("div", {}, counts, layerTitle, layerBar,
    element("small", {}, key("weights", "weights are read"), key("kv", "keys and values are read"), key("arithmetic", "arithmetic takes longer than reading"), key("wire", "cards add up")),
    stepTitle, element("div", { class: "time" }, stepBar, mark), element("label", {}, "moment of the step ", moment), says, scrolling("levels of memory", table));
  el.append(box("way", STYLE, element("div", { class: "bar" }, name, users.field, context.field, cards.field), fits, shown));
  let shape, way, n, u, length;

  function draw() {
    shape = models[name.value];
    [u, length, n] = [users.value(), context.value(), cards.value()];
    const room = n * data.usable * levels.HBM.size, needed = shape.weights + shape.kv * u * length;
    fits.textContent = length > shape.max_context ? `${name.value} looks at no more than ${thousands(shape.max_context)} tokens.`
      : shape.kv_heads % n ? `${shape.kv_heads} KV heads cannot be shared evenly by ${n} cards.`
      : needed > room ? `It does not fit: weights and caches are ${size(needed)}, and ${n} card${n > 1 ? "s have" : " has"} room for ${size(room)}.` : "";
    shown.hidden = fits.textContent !== "";
    if (shown.hidden) return;
    way = wayOf(shape, u, length, n, data);
    showCounts(counts, [["the step, at least", time(way.seconds)], ["out of HBM, each card", size(way.bytes)], ["tokens a second, all users", thousands(Math.round(u / way.seconds))],
      ["of the time limited by arithmetic", `${Math.round((100 * way.byArithmetic) / way.seconds)}%`]]);
    const whole = way.layer.reduce((sum, p) => sum + p.work + p.wire, 0);
    layerTitle.replaceChildren("a layer: ", element("b", { "data-name": "a layer" }, time(whole)));
    layerBar.replaceChildren(...way.layer.flatMap((p, number) => {
      const piece = element("button", { class: `of-${p.kind}`, style: `width:${(100 * p.work) / whole}%`, "data-part": p.name, "aria-label": `${p.name}: ${time(p.work)}`, title: `${p.name}: ${time(p.work)}` }, p.name);
      piece.addEventListener("click", () => go(number));
      return p.wire ? [piece, element("span", { class: "of-wire", style: `width:${(100 * p.wire) / whole}%`, title: `all-reduce: ${time(p.wire)}` })] : [piece];
    }));
    const headShare = (100 * way.head.work) / way.seconds, each = (100 - headShare) / shape.layers;
    stepTitle.replaceChildren(`the step: ${shape.layers} layers, and the LM head (${time(way.head.work)})`);
    stepBar.replaceChildren(...Array.from({ length: shape.layers }, (_, i) => element("span", { class: "of-weights", style: `width:${each}%`, title: `layer ${i + 1}` })),
      element("span", { class: `of-${way.head.kind}`, style: `width:${headShare}%` }, headShare > 8 ? "head" : ""));
    look();
  }

  // To an operation that has just begun, in the layer that is looked at.
  function go(number) {
    const now = at(way, shape.layers, (way.seconds * Number(moment.value)) / MOMENTS), whole = way.layer.reduce((sum, p) => sum + p.work + p.wire, 0);
    const before = way.layer.slice(0, number).reduce((sum, p) => sum + p.work + p.wire, 0), layer = (now.layer || shape.layers) - 1;
    look({ seconds: layer * whole + before + way.layer[number].work / 1000 });
  }

  function look({ seconds } = {}) {
    const when = seconds ?? (way.seconds * Number(moment.value)) / MOMENTS, now = at(way, shape.layers, when), { part } = now;
    if (seconds !== undefined) moment.value = String(Math.ceil((MOMENTS * seconds) / way.seconds));
    mark.style.left = `${(100 * when) / way.seconds}%`;
    layerBar.querySelectorAll("button").forEach((b, i) => b.classList.toggle("at", i === now.number));
    const what = part.kind === "kv" || part.name === "attention" ? "keys and values, each for its own user" : `weights, once for all ${u} users`;
    says.replaceChildren(element("b", { "data-name": "when" }, time(when)), now.layer ? `, layer ${now.layer} of ${shape.layers}: ` : ": ", element("b", { "data-name": "part" }, part.name), now.summing ? ", and the cards add up. " : ". ",
      element("b", { "data-name": "part bytes" }, size(part.bytes)), ` of ${what}: `, element("b", { "data-name": "reading" }, time(part.reading)), ` at ${short(levels.HBM.rate / 1e12)} TB/s. `,
      element("b", { "data-name": "part operations" }, `${short(part.operations / 1e9)}`), " billion operations: ", element("b", { "data-name": "computing" }, time(part.computing)), ` at ${short(data.rate / 1e12)} million million a second. `,
      `So ${part.kind === "arithmetic" ? "arithmetic" : "bytes"} decide${part.kind === "arithmetic" ? "s" : ""}. So far `, element("b", { "data-name": "so far" }, size(now.bytes)), " came out of HBM.");
    drawLevels(now.summing);
  }

  // What passes each level in the whole step, and how long it would take at that level's own rate.
  function drawLevels(summing) {
    const between = (shape.between * u) / n, tables = u * (4 + 4 * Math.ceil(length / PLACES));
    const rows = [
      ["registers", "the numbers that are being multiplied, and the sums", null],
      ["shared memory", "every weight, key and value, tile by tile", way.bytes],
      ["L2", "the same bytes, and the vectors between operations", null, `${size(between)} of vectors`],
      ["HBM", "weights and caches lie here, and come out once", way.bytes],
      ...(n > 1 ? [["NVLink", "sums over cards, two a layer", way.sent]] : []),
      ["PCIe", "token ids and block tables", tables],
    ];
    const head = ["level", "holds", "bytes a second", "passes it in the step", "at its own rate"];
    table.replaceChildren(element("tr", {}, ...head.map((h) => element("th", {}, h))), ...rows.map(([level, what, bytes, other]) => {
      const { size: holds, rate } = levels[level], takes = bytes && rate ? bytes / rate : null;
      return element("tr", { "data-level": level, class: level === (summing ? "NVLink" : "HBM") ? "busy" : "" }, element("td", {}, element("b", {}, level), element("br"), element("small", {}, what)),
        element("td", {}, holds ? size(holds) : "–"), element("td", {}, rate ? `${size(rate)}/s` : "–"), element("td", {}, bytes === null ? other ?? "" : size(bytes)),
        takes === null ? element("td") : element("td", {}, element("span", { "data-name": "takes" }, time(takes)), element("div", { style: `width:${Math.min(100, (100 * takes) / way.seconds)}%` })));
    }));
  }
  draw();
}

export default { render };
