// Replay an engine's run, step by step, from the event stream that engine.record wrote.
// The piece keeps books of its own from the events, and compares them with the engine's counts at each step.

import { COLORS, box, button, element, player, scrolling, showCounts } from "./common.js";
import { Follower, emptyRecording, readRecording, tokensOf, whyWaiting } from "./recording.js";

const STYLE = `
.rep table { width: 100%; min-width: 34em; table-layout: fixed; margin: 8px 0 }
.rep table td.text { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; direction: rtl } .rep table td.text bdi { direction: ltr; unicode-bidi: isolate }
.rep .meter { position: relative; height: 10px; background: var(--faint); border-radius: 2px; margin-top: 5px; overflow: hidden; display: flex } .rep .meter i { height: 100%; display: block }
.rep .budget { display: flex; height: 22px; background: var(--faint); border-radius: 3px; overflow: hidden } .rep .budget i { color: var(--paper); font: 600 12px/22px system-ui; text-align: center; overflow: hidden }
.rep .scrolls, .rep .blocks { contain: layout paint } .rep .blocks { display: flex; flex-wrap: wrap; gap: 2px; margin: 6px 0 } .rep .blocks i { width: 17px; height: 17px; border-radius: 2px; background: var(--faint); font: 10px/17px system-ui; text-align: center; color: var(--paper) }
.rep .blocks i.new { outline: 2px solid var(--ink); outline-offset: -2px } .rep .blocks i.evicted { outline: 2px solid var(--red); outline-offset: -2px }
.rep .accepted, .rep .rejected { margin-left: 4px; padding: 0 2px; border-radius: 2px; white-space: pre } .rep .accepted { background: var(--green-tint); color: var(--green) } .rep .rejected { background: var(--orange-tint); color: var(--red); text-decoration: line-through }
.rep input:is([type=search], [type=url]) { width: 9em; border: 1px solid var(--muted); border-radius: 4px; padding: 2px 6px }
.rep .says { min-height: 3em }
.rep .time { position: relative } .rep .line { width: 100%; height: 48px; display: block; background: var(--faint); border-radius: 3px; cursor: pointer }
.rep .time i { position: absolute; top: 0; height: 48px; width: 2px; background: var(--ink); pointer-events: none }
.rep summary { cursor: pointer } .rep .drop { border: 1px dashed var(--muted); border-radius: 6px; padding: 6px 10px }`;

const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

const put = (node, text) => { if (node.shown !== text) node.textContent = node.shown = text; };

const MOST_ROWS = 40, MOST_CELLS = 1000, MOST_BYTES = 300e6, MOST_STEPS = 20000;

// The drafts of a step, word by word: green ones were accepted, red ones were not.
function drafts(event, name) {
  const { words, accepted } = (event.drafts || {})[name] || { words: [], accepted: 0 };
  return words.map((word, i) => element("span", { class: i < accepted ? "accepted" : "rejected" }, word || "·"));
}

// On the page a file of the reader's own can be looked at, or a server that runs; `lm` is there and says so.
function render({ data: recorded, el, lm }) {
  let data, names, numbers, follower, painting = null, heads = null, cells = [];
  const rows = new Map();
  const color = (name) => COLORS[numbers.get(name) % COLORS.length];
  const know = () => { names = Object.keys(data.requests); numbers = new Map(names.map((n, i) => [n, i])); };
  const steps = player(350, draw);
  const budget = element("div", { class: "budget" }), table = element("table"), blocks = element("div", { class: "blocks" });
  const budgetSays = element("small"), blocksSay = element("small"), status = element("p", { class: "wrong", role: "status" });
  const counts = element("div", { class: "counts" }), says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const line = element("canvas", { class: "line", height: "48", role: "img", "aria-label": "tokens of each step, and how many requests wait" }), mark = element("i");
  line.addEventListener("click", (event) => steps.go(Math.floor((event.offsetX / line.clientWidth) * data.events.length)));
  const wait = button("next wait", "next step in which a request waits", () => {
    const next = data.events.findIndex((event, i) => i > steps.at() && event.waiting);
    if (next >= 0) steps.go(next);
    status.textContent = next < 0 ? "No request waits any more." : "";
  });
  const filter = element("input", { type: "search", "aria-label": "request", placeholder: "all" });
  filter.addEventListener("input", () => steps.go(steps.at()));
  const follow = button("next of it", "its next step", () => {
    const takesPart = (event) => [...Object.keys(event.tokens), ...event.preempted].some(wanted);
    const next = data.events.findIndex((event, i) => i > steps.at() && takesPart(event));
    if (next >= 0) steps.go(next);
    status.textContent = next < 0 ? "It takes part in no later step." : "";
  });
  const frame = box("rep", STYLE, steps.bar, element("div", { class: "time" }, line, mark), element("div", { class: "bar" }, wait, element("label", {}, "request ", filter), follow), says,
    budgetSays, budget, scrolling("requests", table), blocksSay, blocks, counts);
  if (lm) frame.prepend(element("details", {}, element("summary", {}, "your own engine"), fileField(status, (text) => show(readRecording(text))), serverField(status, watch)));
  frame.append(status);
  el.append(frame);

  function show(recording, books = new Follower(recording)) {
    data = recording;
    rows.clear();
    cells = [];
    know();
    data.sequences ??= Math.max(...data.events.map((e) => e.running));
    follower = books;
    budgetSays.textContent = data.guessed ? `who has how much of ${data.budget} tokens, the most in any step` : `who has how much of the budget of ${data.budget} tokens`;
    blocksSay.textContent = `${data.num_blocks} blocks${data.block_size ? ` of ${data.block_size} tokens` : ""}, by whose table they are in`;
    drawLine();
    steps.begin(data.events.length);
  }

  // Steps of a server as they come. Returns what takes one; false says that there are enough.
  function watch(engine) {
    const live = emptyRecording(engine), books = new Follower(live);
    return (text) => {
      books.append(text);
      if (live.events.length === 1) return show(live, books);
      if (data === live) painting ??= requestAnimationFrame(() => { painting = null; know(); drawLine(); steps.grow(data.events.length); });
      return live.events.length < MOST_STEPS;
    };
  }

  // All steps on one line: blue what was computed, orange how many wait, red where one was preempted.
  function drawLine() {
    line.width = Math.max(300, line.clientWidth);
    const paint = line.getContext("2d"), { width, height } = line, { events } = data;
    const most = Math.max(...events.map(tokensOf)), longest = Math.max(1, ...events.map((e) => e.waiting)), wide = Math.max(1, width / events.length);
    const [blue, orange, red] = ["--blue", "--orange", "--red"].map((name) => resolved(`var(${name})`));
    events.forEach((event, i) => {
      const x = (i * width) / events.length, up = (tokensOf(event) / most) * (height - 8);
      paint.fillStyle = blue;
      paint.fillRect(x, height - up, Math.max(1, wide - 1), up);
      paint.fillStyle = orange;
      if (event.waiting) paint.fillRect(x, height - (event.waiting / longest) * (height - 8) - 2, wide, 2);
      paint.fillStyle = red;
      if (event.preempted.length) paint.fillRect(x, 0, Math.max(2, wide - 1), 5);
    });
  }

  // A colour as a canvas understands it.
  function resolved(name) {
    status.style.color = name;
    const { color } = getComputedStyle(status);
    status.style.color = "";
    return color;
  }

  function draw(at) {
    const event = data.events[at], people = follower.after(at);
    mark.style.left = `${(100 * (at + 0.5)) / data.events.length}%`;
    const news = [];
    if (event.arrived.length) news.push(`${event.arrived.join(", ")} arrived`);
    if (event.preempted.length) news.push(`${event.preempted.join(", ")} preempted, since a block was missing: its blocks are free again`);
    for (const [n, why] of Object.entries(event.finished)) news.push(`${n} is done (${why})`);
    if (event.hit.length) news.push(`${many(event.hit.length, "block")} found in the cache`);
    if (event.evicted.length) news.push(`${many(event.evicted.length, "kept block")} overwritten`);
    const why = whyWaiting(event, data);
    says.replaceChildren(news.join(" · "), why ? element("div", { "data-name": "why" }, `${many(event.waiting, "request")} waiting: ${why}`) : "");

    budget.replaceChildren();
    for (const [n, count] of Object.entries(event.tokens)) {
      budget.append(element("i", { style: `width:${(100 * count) / data.budget}%;background:${color(n)}`, title: `${n}: ${count}` }, count > 2 ? `${n} ${count}` : ""));
    }
    drawTable(event, people);
    const owners = {};
    for (const n of names) for (const b of people[n].table) (owners[b] = owners[b] || []).push(n);
    if (data.num_blocks > MOST_CELLS) drawManyBlocks(owners);
    else drawBlocks(event, owners);

    const held = Object.keys(owners).length, tokens = tokensOf(event);
    const count = (...states) => names.filter((n) => states.includes(people[n].state)).length;
    showCounts(counts, [["tokens in this step", tokens], ["running", event.running], ["waiting", event.waiting],
      ["blocks held", held], ["blocks free", event.free_blocks]]);
    // A request that waits has no name before its first step, in a file and in a stream.
    const right = held + event.free_blocks === data.num_blocks && count("running") === event.running && tokens <= data.budget
      && (data.silent || count("waiting", "preempted") === event.waiting);
    counts.append(element("span", { class: right ? "ok" : "wrong", "data-name": "invariant" },
      right ? `${held} + ${event.free_blocks} = ${data.num_blocks} blocks; the engine counts the same` : "the engine counts differently"));
  }

  function wanted(name) { return name.includes(filter.value.trim()); }

  // All requests; of many only those that are here.
  function drawTable(event, people) {
    const here = names.length <= 12 || filter.value.trim() ? names.filter(wanted) : names.filter((n) => /running|waiting|preempted/.test(people[n].state) || n in event.finished);
    heads ??= element("tr", {}, ...[["request", "14%"], ["state", "16%"], ["this step", "10%"], ["computed of its tokens", "24%"], ["text", "36%"]]
      .map(([t, w]) => element("th", { style: `width:${w}` }, t)));
    const shown = here.slice(0, MOST_ROWS).map((n) => drawRow(n, people[n]));
    if (here.length > MOST_ROWS) shown.push(element("tr", {}, element("td", { colspan: "5" }, `and ${here.length - MOST_ROWS} more`)));
    if (shown.length !== table.rows.length - 1 || shown.some((row, i) => row !== table.rows[i + 1])) table.replaceChildren(heads, ...shown);
    for (const n of here.slice(0, MOST_ROWS)) rows.get(n).doing.append(...drafts(event, n));
  }

  // A row is made once for each request. Later only what has changed in it is written: that keeps scrubbing smooth.
  function drawRow(n, p) {
    const { prompt, prompt_tokens } = data.requests[n], whole = prompt_tokens + p.written, known = p.state !== "not here yet";
    if (!rows.has(n)) {
      const [state, doing, computed, of, fill, text] = [element("td", { "data-name": "state" }), element("td", { "data-name": "doing" }), element("span", { "data-name": "computed" }), element("span"), element("i", { style: `background:${color(n)}` }), element("bdi")];
      const progress = element("span", {}, computed, ...(prompt === undefined ? [] : [of, element("div", { class: "meter" }, fill)]));
      const row = element("tr", { "data-request": n }, element("td", {}, element("b", { style: `color:${color(n)}` }, n)), state, doing, element("td", {}, progress), element("td", { class: "text", "data-name": "text" }, text));
      rows.set(n, { row, state, doing, computed, of, fill, text, progress });
    }
    const { row, state, doing, computed, of, fill, text, progress } = rows.get(n);
    put(state, p.state);
    doing.textContent = p.doing ? String(p.doing) : "–";
    put(computed, String(p.computed));
    put(of, ` of ${whole}`);
    progress.hidden = !known;
    fill.style.width = `${(100 * p.computed) / whole}%`;
    put(text, !known ? "" : prompt === undefined ? `blocks ${p.table.join(" ")}` : prompt + p.text);
    return row;
  }

  function drawBlocks(event, owners) {
    if (cells.length !== data.num_blocks || blocks.firstChild !== cells[0]) {
      cells = Array.from({ length: data.num_blocks }, (_, i) => element("i", { "data-block": String(i + 1) }));
      blocks.replaceChildren(...cells);
    }
    const taken = new Set(event.taken), evicted = new Set(event.evicted);
    cells.forEach((cell, i) => {
      const mine = owners[i + 1] ?? [], kind = evicted.has(i + 1) ? "evicted" : taken.has(i + 1) ? "new" : "", key = `${mine} ${kind}`;
      if (cell.shown === key) return;
      cell.shown = key;
      cell.className = kind;
      cell.title = `block ${i + 1}: ${mine.length ? mine.join(", ") : "free"}`;
      cell.style.background = mine.length > 1 ? "var(--ink)" : mine.length ? color(mine[0]) : "";
      cell.textContent = mine.length > 1 ? String(mine.length) : "";
    });
  }

  // Too many for an element each: painted, two pixels a block.
  function drawManyBlocks(owners) {
    const width = Math.floor(Math.max(300, blocks.clientWidth) / 2), canvas = element("canvas", { width: 2 * width, height: 2 * Math.ceil(data.num_blocks / width), role: "img", "aria-label": "blocks" });
    const paint = canvas.getContext("2d"), shades = COLORS.map(resolved);
    for (const [b, [n]] of Object.entries(owners)) {
      paint.fillStyle = shades[numbers.get(n) % shades.length];
      paint.fillRect(2 * ((b - 1) % width), 2 * Math.floor((b - 1) / width), 2, 2);
    }
    blocks.replaceChildren(canvas);
  }

  show(recorded);
}

// A field for a file, which may also be dropped on it. What is wrong with it is said in one line.
function fileField(status, read) {
  const input = element("input", { type: "file", "aria-label": "a recording of your own" });
  const take = async (file) => {
    if (!file) return;
    try {
      if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${Math.round(file.size / 1e6)} MB: record fewer steps, at most ${MOST_BYTES / 1e6} MB`);
      read(await file.text());
      status.textContent = "";
    } catch (error) { status.textContent = `${file.name}: ${error.message}`; }
  };
  input.addEventListener("change", () => take(input.files[0]));
  const field = element("label", { class: "bar drop" }, "a recording of your own engine (engine.record(\"run.jsonl\")): choose it, or drop it here ", input);
  field.addEventListener("dragover", (event) => event.preventDefault());
  field.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  return field;
}

// A field for the address of a server that runs. begin(engine) hears what the server says of its engine, and returns what
// takes its steps.
function serverField(status, begin) {
  const address = element("input", { type: "url", value: "http://127.0.0.1:8000", "aria-label": "address of a running server" });
  let source = null, take = null;
  const stop = (says) => { source?.close(); source = take = null; go.textContent = "watch it"; status.textContent = says; };
  const go = button("watch", "watch it", () => {
    if (source) return stop("");
    const hint = `no server at ${address.value} tells this page its steps: lab serve --enable-step-events --allowed-origins '["${location.origin}"]'`;
    try { source = new EventSource(`${address.value.replace(/\/+$/, "")}/events`); } catch { return stop(hint); }
    go.textContent = "stop watching";
    status.textContent = "waiting for its first step …";
    source.addEventListener("engine", (event) => { take = begin(JSON.parse(event.data)); });
    source.onmessage = (event) => {
      status.textContent = "";
      if (take(event.data) === false) stop(`${MOST_STEPS} steps: no more are kept. Watch it again to begin anew.`);
    };
    source.onerror = () => stop(take ? "the server has ended; its steps stay here" : hint);
  });
  return element("div", { class: "bar drop" }, element("label", {}, "or a server that runs (lab serve --enable-step-events) ", address), go);
}

export default { render };
