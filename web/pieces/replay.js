// Replay an engine's run, step by step, from the event stream that engine.record wrote.
// The piece keeps books of its own from the events, and compares them with the engine's counts at each step.

import { element, keepKeys } from "./common.js";

const STYLE = `
.rep { background:#fff; color:#1f2933; border:1px solid #e3e7eb; border-radius:10px; padding:14px; font:14px/1.5 system-ui,sans-serif }
[data-jp-theme-light="false"] .rep { filter:brightness(.87) }
.rep .bar { display:flex; gap:10px; align-items:center; flex-wrap:wrap } .rep .bar input { flex:1; min-width:160px }
.rep button { font:inherit; color:inherit; background:#fff; border:1px solid #9aa5b1; border-radius:4px; padding:1px 10px; cursor:pointer } .rep button:disabled { opacity:.4; cursor:default }
.rep table { border-collapse:collapse; width:100%; table-layout:fixed; margin:8px 0 }
.rep table td, .rep table th { text-align:left !important; padding:2px 8px 2px 0; font-size:13px; vertical-align:top; background:#fff !important; color:#1f2933 !important; border:0 }
.rep table td.text { white-space:nowrap; overflow:hidden; text-overflow:ellipsis; direction:rtl } .rep table td.text bdi { direction:ltr; unicode-bidi:isolate }
.rep .meter { position:relative; height:10px; background:#eef2f6; border-radius:2px; margin-top:5px; overflow:hidden; display:flex } .rep .meter i { height:100%; display:block }
.rep .budget { display:flex; height:22px; background:#eef2f6; border-radius:3px; overflow:hidden } .rep .budget i { color:#fff; font:600 12px/22px system-ui; text-align:center; overflow:hidden }
.rep .blocks { display:flex; flex-wrap:wrap; gap:2px; margin:6px 0 } .rep .blocks i { width:17px; height:17px; border-radius:2px; background:#eef2f6; font:10px/17px system-ui; text-align:center; color:#fff; font-style:normal }
.rep .blocks i.new { outline:2px solid #1f2933; outline-offset:-2px } .rep .blocks i.evicted { outline:2px solid #c8453b; outline-offset:-2px }
.rep .counts { display:flex; gap:22px; flex-wrap:wrap } .rep .counts b { display:block; font-size:18px }
.rep .stood, .rep .fell { margin-left:4px; padding:0 2px; border-radius:2px; white-space:pre } .rep .stood { background:#d8efe2; color:#2c7a50 } .rep .fell { background:#fbe1de; color:#c8453b; text-decoration:line-through }
.rep .says { min-height:1.6em } .rep .ok { color:#2c7a50 } .rep .wrong { color:#c8453b } .rep small { color:#66727f }`;
const COLORS = ["#2f6fb0", "#c2601c", "#3c9d6b", "#7d5ba6", "#c8453b", "#21868a", "#a87b00", "#66727f"];

const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// The state of every request after each step, from the events alone.
function follow(data) {
  const names = Object.keys(data.requests), moments = [];
  let people = Object.fromEntries(names.map((n) => [n, { state: "not here yet", computed: 0, doing: 0, written: 0, text: "", table: [], cached: 0 }]));
  data.events.forEach((event) => {
    people = Object.fromEntries(names.map((n) => [n, { ...people[n], doing: 0 }]));
    for (const n of event.arrived) people[n].state = "waiting";
    for (const n of event.preempted) Object.assign(people[n], { state: "preempted", computed: 0, table: [] });
    for (const [n, count] of Object.entries(event.tokens)) {
      // Drafts that do not stand were computed for nothing; those that do come beside the model's own token.
      const { words, accepted } = (event.drafts || {})[n] || { words: [], accepted: 0 };
      people[n].written += accepted;
      Object.assign(people[n], { state: "running", doing: count, computed: event.computed[n] + count - words.length + accepted, table: event.blocks[n] });
    }
    for (const [n, text] of Object.entries(event.said)) { people[n].text += text; people[n].written++; }
    for (const [n, why] of Object.entries(event.finished)) Object.assign(people[n], { state: "finished: " + why, table: [] });
    const held = new Set(names.flatMap((n) => people[n].table));
    const count = (...states) => names.filter((n) => states.includes(people[n].state)).length;
    moments.push({
      people, held: held.size, running: count("running"), waiting: count("waiting", "preempted"),
      tokens: Object.values(event.tokens).reduce((a, b) => a + b, 0),
    });
  });
  return { names, moments };
}

// The drafts of a step, word by word: green ones stood, red ones did not.
function drafts(event, name) {
  const { words, accepted } = (event.drafts || {})[name] || { words: [], accepted: 0 };
  return words.map((word, i) => element("span", { class: i < accepted ? "stood" : "fell" }, word || "·"));
}

function render({ model, el }) {
  const data = model.get("data"), { names, moments } = follow(data);
  const color = (name) => COLORS[names.indexOf(name) % COLORS.length];
  const last = data.events.length - 1;
  let at = 0, clock = null;
  const box = element("div", { class: "rep" });
  keepKeys(box);
  const button = (name, label, click) => {
    const b = element("button", { "data-do": name }, label);
    b.addEventListener("click", click);
    return b;
  };
  const go = (step) => { at = Math.max(0, Math.min(last, step)); draw(); };
  const back = button("back", "◀ back", () => go(at - 1)), forward = button("forward", "forward ▶", () => go(at + 1));
  const play = button("play", "play", () => {
    if (clock) { clearInterval(clock); clock = null; }
    else clock = setInterval(() => { if (at === last || !box.isConnected) { clearInterval(clock); clock = null; } else go(at + 1); play.textContent = clock ? "stop" : "play"; }, 350);
    play.textContent = clock ? "stop" : "play";
  });
  const slider = element("input", { type: "range", min: "0", max: String(last), value: "0", "aria-label": "step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const title = element("b", { "data-name": "step" });
  const budget = element("div", { class: "budget" }), table = element("table"), blocks = element("div", { class: "blocks" });
  const counts = element("div", { class: "counts" }), says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  box.append(element("style", {}, STYLE), element("div", { class: "bar" }, back, forward, play, slider, title), says,
    element("small", {}, `who has how much of the budget of ${data.budget} tokens`), budget, table,
    element("small", {}, `${data.num_blocks} blocks of ${data.block_size} tokens, by whose table they are in`), blocks, counts);
  el.append(box);

  function draw() {
    const event = data.events[at], now = moments[at];
    slider.value = String(at); back.disabled = at === 0; forward.disabled = at === last;
    title.textContent = `step ${at + 1} of ${last + 1}`;

    const news = [];
    if (event.arrived.length) news.push(`${event.arrived.join(", ")} arrived`);
    if (event.preempted.length) news.push(`${event.preempted.join(", ")} preempted: a block was missing`);
    for (const [n, why] of Object.entries(event.finished)) news.push(`${n} is done (${why})`);
    if (event.hit.length) news.push(`${many(event.hit.length, "block")} found in the cache`);
    if (event.evicted.length) news.push(`${many(event.evicted.length, "kept block")} overwritten`);
    says.textContent = news.join(" · ");

    budget.replaceChildren();
    for (const [n, count] of Object.entries(event.tokens)) {
      budget.append(element("i", { style: `width:${(100 * count) / data.budget}%;background:${color(n)}`, title: `${n}: ${count}` }, count > 2 ? `${n} ${count}` : ""));
    }
    table.replaceChildren(element("tr", {}, ...[["request", "11%"], ["state", "16%"], ["this step", "10%"], ["computed of its tokens", "24%"], ["text", "39%"]]
      .map(([t, w]) => element("th", { style: `width:${w}` }, t))));
    for (const n of names) {
      const p = now.people[n], whole = data.requests[n].prompt_tokens + p.written;
      const meter = element("div", { class: "meter" }, element("i", { style: `width:${(100 * p.computed) / whole}%;background:${color(n)}` }));
      const here = p.state !== "not here yet";
      table.append(element("tr", { "data-request": n }, element("td", {}, element("b", { style: `color:${color(n)}` }, n)),
        element("td", { "data-name": "state" }, p.state), element("td", { "data-name": "doing" }, p.doing ? String(p.doing) : "–", ...drafts(event, n)),
        element("td", {}, here ? element("span", {}, element("span", { "data-name": "computed" }, String(p.computed)), ` of ${whole}`, meter) : ""),
        element("td", { class: "text", "data-name": "text" }, element("bdi", {}, here ? data.requests[n].prompt + p.text : ""))));
    }

    blocks.replaceChildren();
    const owners = {};
    for (const n of names) for (const b of now.people[n].table) (owners[b] = owners[b] || []).push(n);
    for (let b = 1; b <= data.num_blocks; b++) {
      const cell = element("i", { "data-block": String(b), title: `block ${b}: ${owners[b] ? owners[b].join(", ") : "free"}`,
        class: event.evicted.includes(b) ? "evicted" : event.taken.includes(b) ? "new" : "" });
      if (owners[b]) { cell.style.background = owners[b].length > 1 ? "#1f2933" : color(owners[b][0]); cell.textContent = owners[b].length > 1 ? String(owners[b].length) : ""; }
      blocks.append(cell);
    }

    counts.replaceChildren();
    const show = (name, value) => counts.append(element("span", {}, element("b", { "data-name": name }, String(value)), name));
    show("tokens in this step", now.tokens); show("running", now.running); show("waiting", now.waiting);
    show("blocks held", now.held); show("blocks free", event.free_blocks);
    const right = now.held + event.free_blocks === data.num_blocks && now.running === event.running && now.waiting === event.waiting && now.tokens <= data.budget;
    counts.append(element("span", { class: right ? "ok" : "wrong", "data-name": "invariant" },
      right ? `${now.held} + ${event.free_blocks} = ${data.num_blocks} blocks; the engine counts the same` : "the engine counts differently"));
    model.set("state", { step: at + 1 });
    model.save_changes();
  }
  draw();
}

export default { render };
