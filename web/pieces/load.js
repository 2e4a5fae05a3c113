// Throughput against latency. The course's simulator runs here again (simulator.js) for whatever the reader chooses: same
// traffic, same decisions, same clock as in Python. Nothing is measured: the clock is computed from a card's data sheet.

import { box, element, scrolling, shape, short, showCounts, thousands } from "./common.js";
import { capacityOf, feltAt } from "./simulator.js";

const STYLE = `
.loa .charts { display: flex; flex-wrap: wrap; gap: 8px 20px } .loa svg { flex: 0 1 350px; min-width: 0; height: auto; font: 12px system-ui }
.loa svg text { fill: var(--ink) } .loa svg .axis { stroke: var(--muted); stroke-width: 1; fill: none } .loa svg .grid { stroke: var(--line) } .loa svg .line { fill: none; stroke: var(--blue); stroke-width: 2 }
.loa svg .offered { stroke: var(--muted); stroke-dasharray: 4 4; fill: none } .loa svg .saturation { stroke: var(--orange); stroke-width: 2; stroke-dasharray: 5 3 } .loa svg circle { fill: var(--blue) } .loa svg .late { fill: var(--red) }
.loa table { min-width: 44em } .loa :is(td, th) { text-align: right !important; padding: 2px 0 2px 14px } .loa tr.saturation td { background: var(--orange-tint) !important } .loa .says { min-height: 4.5em }`;

const SEQUENCES = [4, 8, 16, 32, 64, 128, 256], TTFTS = [0.2, 0.5, 1, 2, 5, 10], TPOTS = [0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2], ENOUGH = 0.95;
const WIDTH = 380, HEIGHT = 230, LEFT = 52, BOTTOM = 40, TOP = 24;

// The load up to which p95 of TTFT stays below twice its value at the lightest one: the number of points before the first that is
// above.
const calmPoints = (points) => { const first = points.findIndex((p) => p.ttft95 > 2 * points[0].ttft95); return first < 0 ? points.length : first; };

function render({ data, el }) {
  const { start } = data;
  const choose = (label, pairs, at) => {
    const select = element("select", { "aria-label": label });
    for (const [value, text] of pairs) select.append(element("option", { value }, text));
    select.value = at;
    select.addEventListener("change", begin);
    return select;
  };
  const slide = (label, values, at, unit, changed) => {
    const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(at)), "aria-label": label }), shown = element("b");
    slider.addEventListener("input", changed);
    return { field: element("label", {}, label, " ", slider, " ", shown), value: () => { const now = values[Number(slider.value)]; shown.textContent = `${now}${unit}`; return now; } };
  };
  const name = choose("model", data.models.map((m) => [m, m]), start.model), card = choose("card", Object.entries(data.cards), start.card);
  const pattern = choose("traffic", Object.keys(data.traffic).map((p) => [p, p]), start.pattern);
  const sequences = slide("max_num_seqs", SEQUENCES, start.sequences, "", begin), ttft = slide("first token within", TTFTS, data.slo.ttft, " s", begin), tpot = slide("then a token every", TPOTS, data.slo.tpot, " s", begin);
  const says = element("div", { class: "says", "data-name": "says", role: "status" }), counts = element("div", { class: "counts" }), charts = element("div", { class: "charts" }), table = element("table");
  el.append(box("loa", STYLE, element("div", { class: "bar" }, name, "on", card, element("label", {}, "traffic ", pattern)), element("div", { class: "bar" }, sequences.field, ttft.field, tpot.field),
    says, charts, scrolling("what users feel at each load", table), counts));
  let asked = 0;

  // One load after the other, and the window may be painted between two. A new choice ends what was begun.
  async function begin() {
    const mine = ++asked, cost = data.costs[`${name.value} ${card.value}`], limits = { sequences: sequences.value(), budget: data.budget, blocks: cost?.num_blocks }, slo = { ttft: ttft.value(), tpot: tpot.value() };
    el.removeAttribute("data-done");
    if (!cost) { says.textContent = `${name.value} in 16 bit does not fit on this card.`; charts.replaceChildren(); table.replaceChildren(); counts.replaceChildren(); return; }
    const traffic = data.traffic[pattern.value].map(([arrival, prompt, answer]) => ({ arrival, prompt, answer })), points = [];
    const most = capacityOf(traffic, limits, cost);
    for (const load of data.loads) {
      says.textContent = `working it out: ${points.length} of ${data.loads.length} loads`;
      await new Promise((resolve) => setTimeout(resolve));
      if (mine !== asked) return;
      points.push({ load, ...feltAt(traffic, load * most, limits, cost, slo) });
    }
    draw(points, most, slo, cost);
  }

  function draw(points, most, slo, cost) {
    const calm = calmPoints(points), saturation = points[calm - 1], bends = calm < points.length, inTime = points.filter((p) => p.good >= ENOUGH), best = inTime.at(-1);
    const per = (rate) => `${short(rate)} a second`, dollars = (rate) => `$${((1000 * cost.dollars_per_hour) / 3600 / rate).toFixed(2)}`;
    says.replaceChildren("This server gets ", element("b", { "data-name": "most" }, short(most)), " requests a second done. ",
      bends ? `The saturation point is near ${per(saturation.rate)}, ${Math.round(100 * saturation.load)}% of that: above it, one user in twenty waits more than twice as long for the first token as on a calm day. ` : `Within these loads the first token stays quick. (A run of ${data.traffic[pattern.value].length} requests is short: on a fast card a queue has no time to grow.) `,
      best ? `The SLO holds for 95 of 100 requests up to ${per(best.rate)}; a thousand of them cost ${dollars(best.rate)}.` : "The SLO does not hold for 95 of 100 requests at any of these loads.");
    const columns = ["load", "requests/s", "tokens/s", "TTFT p50, s", "TTFT p95, s", "ITL p95, ms", "cache used", "preempted", "in time"];
    table.replaceChildren(element("tr", {}, ...columns.map((t) => element("th", {}, t))), ...points.map((p) => element("tr", { "data-load": String(p.load), class: bends && p === saturation ? "saturation" : "" },
      ...[["load", p.load.toFixed(2)], ["rate", short(p.rate)], ["tokens", thousands(Math.round(p.tokens))], ["ttft50", p.ttft50.toFixed(3)], ["ttft95", p.ttft95.toFixed(3)], ["itl95", (1e3 * p.itl95).toFixed(1)], ["usage", `${Math.round(100 * p.usage)}%`],
        ["preemptions", String(p.preemptions)], ["good", `${Math.round(100 * p.good)}%`]].map(([what, text]) => element("td", { "data-name": what }, text)))));
    const mark = bends ? (points[calm - 1].rate + points[calm].rate) / 2 : null;
    charts.replaceChildren(
      chart("one user in twenty waits longer than this for the first token, s", "requests a second that come", points.map((p) => [p.rate, p.ttft95, p.good >= ENOUGH]), { log: true, mark }),
      chart("answer tokens a second, for all users", "requests a second that come", points.map((p) => [p.rate, p.tokens, p.good >= ENOUGH]), { mark }),
      chart("requests a second served in time (goodput)", "requests a second that come", points.map((p) => [p.rate, p.rate * p.good, p.good >= ENOUGH]), { mark, offered: true }));
    showCounts(counts, [["saturation point, requests per second", bends ? short(saturation.rate) : "none here"], ["most in time", best ? short(best.rate) : "0"], ["tokens a second there", best ? thousands(Math.round(best.tokens)) : "0"], ["a thousand requests", best ? dollars(best.rate) : "–"]]);
    el.setAttribute("data-done", "");
  }

  // points: [x, y, kept]. Red where the SLO is missed; the table says the same in words.
  function chart(title, below, points, { log = false, mark = null, offered = false }) {
    const xs = points.map(([x]) => x), ys = points.map(([, y]) => y), right = Math.max(...xs) * 1.05, low = log ? Math.log10(Math.min(...ys)) - 0.1 : 0, high = log ? Math.log10(Math.max(...ys)) + 0.1 : Math.max(...ys, offered ? right : 0) * 1.05;
    const x = (v) => LEFT + ((WIDTH - LEFT - 8) * v) / right, y = (v) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * ((log ? Math.log10(v) : v) - low)) / (high - low);
    const ticks = log ? [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000].filter((v) => Math.log10(v) >= low && Math.log10(v) <= high) : [0, 0.25, 0.5, 0.75, 1].map((s) => Number((s * high).toPrecision(2)));
    return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, against ${below}: the table below has the numbers` },
      shape("text", { x: 4, y: 13 }, title),
      ...ticks.flatMap((v) => [shape("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(v), y2: y(v) }), shape("text", { x: LEFT - 5, y: y(v) + 4, "text-anchor": "end" }, short(v))]),
      ...[0.25, 0.5, 0.75, 1].map((s) => shape("text", { x: x(s * right), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(Number((s * right).toPrecision(2))))),
      shape("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, below),
      shape("path", { class: "axis", d: `M${LEFT},${TOP}V${HEIGHT - BOTTOM}H${WIDTH - 8}` }),
      ...(offered ? [shape("path", { class: "offered", d: `M${x(0)},${y(0)}L${x(right)},${y(right)}` })] : []),
      ...(mark ? [shape("line", { class: "saturation", x1: x(mark), x2: x(mark), y1: TOP, y2: HEIGHT - BOTTOM }), shape("text", { x: x(mark) - 4, y: TOP + 10, "text-anchor": "end" }, "saturation")] : []),
      shape("path", { class: "line", d: points.map(([px, py], i) => `${i ? "L" : "M"}${x(px).toFixed(1)},${y(py).toFixed(1)}`).join("") }),
      ...points.map(([px, py, kept]) => shape("circle", { class: kept ? "" : "late", cx: x(px), cy: y(py), r: 4 })));
  }
  begin();
}

export default { render };
