// Poke a paged allocator: add, append, fork and free requests, and see what happens to the blocks.
// The rules are those of phase 3's paging/block_manager.py and sharing/fork.py.

import { COLORS, box, button, element, glide, showCounts } from "./common.js";

const STYLE = `
.alloc input[type=number] { width: 56px; border: 1px solid var(--muted); border-radius: 4px; padding: 2px 4px }
.alloc .blocks { display: grid; grid-template-columns: repeat(auto-fill, minmax(78px, 1fr)); gap: 6px; margin: 8px 0 }
.alloc .block { border: 1px solid var(--muted); border-radius: 4px; padding: 2px 6px 4px; min-height: 62px }
.alloc .block.cached { border-style: dashed; background: var(--faint) } .alloc .block.free { color: var(--muted) } .alloc .block.touched { box-shadow: 0 0 0 2px var(--orange) }
.alloc .block .id { font-size: 11px; color: var(--muted) } .alloc .block .who { font-weight: 600; min-height: 1.4em }
.alloc .fill { display: flex; gap: 2px } .alloc .fill i { flex: 1; height: 7px; background: var(--line); border-radius: 1px }
.alloc [data-glide] { display: inline-block } .alloc td button { padding: 1px 6px } .alloc .says { min-height: 1.6em; color: var(--orange) }`;

class Manager {
  constructor(numBlocks, blockSize, caching) {
    this.size = blockSize; this.caching = caching; this.total = numBlocks - 1;  // block 0 is never given out
    this.refs = Array(numBlocks).fill(0);
    this.names = Array(numBlocks).fill(null);
    this.byName = new Map();  // content -> blocks that hold it, the oldest first
    this.free = Array.from({ length: this.total }, (_, i) => i + 1);
    this.stats = { hit: 0, evicted: 0, copied: 0 };
  }
  // A block's name: its tokens and everything before them. (Python hashes it; here it may stay long.)
  nameOf(tokens, index) { return tokens.slice(0, (index + 1) * this.size).join(","); }
  match(tokens) {
    const found = [];
    if (!this.caching) return found;
    for (let i = 0; i < Math.floor((tokens.length - 1) / this.size); i++) {
      const same = this.byName.get(this.nameOf(tokens, i));
      if (!same) break;
      found.push(same[0]);
    }
    return found;
  }
  allocate(request, numTokens, prefix = []) {
    const { blocks } = request;
    const missing = Math.ceil(numTokens / this.size) - blocks.length;
    const written = Math.floor(request.written / this.size);
    const shared = written < blocks.length && this.refs[blocks[written]] > 1;
    const needed = missing - prefix.filter((b) => this.refs[b] > 0).length + (shared ? 1 : 0);
    if ((missing > 0 || shared || prefix.length) && needed > this.free.length) return false;
    for (const block of prefix) {
      if (this.refs[block] === 0) this.free.splice(this.free.indexOf(block), 1);
      this.refs[block]++;
      blocks.push(block);
    }
    request.hashed += prefix.length;
    this.stats.hit += prefix.length * this.size;
    if (shared) {
      const copy = this.take();
      this.refs[blocks[written]]--;
      blocks[written] = copy;
      this.stats.copied++;
    }
    for (let i = prefix.length; i < missing; i++) blocks.push(this.take());
    request.written = numTokens;
    if (this.caching) {
      const full = Math.floor(Math.min(numTokens, request.tokens.length) / this.size);
      for (; request.hashed < full; request.hashed++) {
        const block = blocks[request.hashed];
        if (this.names[block] !== null) continue;
        this.names[block] = this.nameOf(request.tokens, request.hashed);
        this.byName.set(this.names[block], [...(this.byName.get(this.names[block]) || []), block]);
      }
    }
    return true;
  }
  take() {
    const block = this.free.shift();
    this.refs[block] = 1;
    if (this.names[block] !== null) {
      const rest = this.byName.get(this.names[block]).filter((b) => b !== block);
      if (rest.length) this.byName.set(this.names[block], rest); else this.byName.delete(this.names[block]);
      this.names[block] = null;
      this.stats.evicted++;
    }
    return block;
  }
  giveBack(request) {
    const named = [], nameless = [];
    for (const block of [...request.blocks].reverse()) {
      if (--this.refs[block] === 0) (this.names[block] === null ? nameless : named).push(block);
    }
    this.free.unshift(...nameless);
    this.free.push(...named);
  }
}

class World {
  constructor(setup) {
    this.manager = new Manager(setup.num_blocks, setup.block_size, setup.caching);
    this.requests = new Map();
    this.count = 0;
    this.refused = false;
  }
  // A token of one request alone; tokens 1, 2, 3, ... are those of the prompt that all share.
  own(number, position) { return 1000 * number + position; }
  play([what, ...rest]) {
    const manager = this.manager;
    this.refused = false;
    if (what === "add") {
      const [shared, own] = rest, number = this.count + 1;
      const tokens = [];
      for (let i = 0; i < shared + own; i++) tokens.push(i < shared ? i + 1 : this.own(number, i));
      const request = { number, tokens, blocks: [], written: 0, hashed: 0 };
      this.refused = !manager.allocate(request, tokens.length, manager.match(tokens));
      if (!this.refused) { this.count++; this.requests.set(String.fromCharCode(64 + number), request); }
      return;
    }
    const request = this.requests.get(rest[0]);
    if (!request) return;
    if (what === "append") {
      request.tokens.push(this.own(request.number, request.tokens.length));
      this.refused = !manager.allocate(request, request.tokens.length);
      if (this.refused) request.tokens.pop();
    } else if (what === "fork") {
      const number = ++this.count;
      request.blocks.forEach((b) => manager.refs[b]++);
      this.requests.set(String.fromCharCode(64 + number),
        { ...request, number, tokens: [...request.tokens], blocks: [...request.blocks] });
    } else if (what === "free") {
      manager.giveBack(request);
      this.requests.delete(rest[0]);
    }
  }
}

function render({ data, el }) {
  let setup = { ...data.setup }, operations = data.operations.map((o) => [...o]), undone = [];
  const shared = element("input", { type: "number", min: "0", max: "64", value: "8", "aria-label": "shared tokens" });
  const own = element("input", { type: "number", min: "0", max: "64", value: "3", "aria-label": "own tokens" });
  const size = element("select", { "aria-label": "block size" });
  for (const n of [1, 2, 4, 8, 16]) size.append(element("option", { value: String(n) }, String(n)));
  const pool = element("input", { type: "number", min: "2", max: "64", value: String(setup.num_blocks - 1), "aria-label": "blocks" });
  const caching = element("input", { type: "checkbox", "aria-label": "prefix caching" });
  const back = button("back", "◀ back", () => { undone.push(operations.pop()); draw(); });
  const forward = button("forward", "forward ▶", () => { operations.push(undone.pop()); draw(); });
  const act = (...operation) => { operations.push(operation); undone = []; draw(); };
  const add = button("add", "add a request", () => {
    const a = Math.max(0, Math.trunc(Number(shared.value)) || 0), b = Math.max(0, Math.trunc(Number(own.value)) || 0);
    if (a + b > 0) act("add", Math.min(a, 500), Math.min(b, 400));
  });
  const restart = () => {
    setup = { num_blocks: Math.min(65, Math.max(2, Math.trunc(Number(pool.value)) + 1 || 2)), block_size: Number(size.value), caching: caching.checked };
    pool.value = String(setup.num_blocks - 1);
    operations = []; undone = []; draw();
  };
  size.value = String(setup.block_size); caching.checked = setup.caching;
  [size, pool, caching].forEach((control) => control.addEventListener("change", restart));
  const says = element("div", { class: "says", "data-name": "says", "aria-live": "polite" });
  const counts = element("div", { class: "counts" });
  const blocks = element("div", { class: "blocks" });
  const freeList = element("div", {}), table = element("table");
  const frame = box("alloc", STYLE,
    element("div", { class: "bar" }, add, "with ", shared, " tokens of the common prompt and ", own, " of its own", back, forward),
    says, table, blocks, element("small", {}, "× 2: two requests share the block. Orange frame: the last click changed it. Dashed: free, and still holds tokens that a later request may find."), freeList, counts,
    element("div", { class: "bar" }, "the memory: ", element("label", {}, "tokens a block ", size), element("label", {}, "blocks ", pool),
      element("label", {}, caching, " prefix caching"), "(starts anew)"));
  el.append(frame);

  // A block's number moves from the free list to a table and back.
  const number = (id, owner) => element("span", { "data-glide": `${id} ${owner}` }, String(id));
  const listed = (ids, owner) => ids.flatMap((id) => [number(id, owner(id)), " "]).slice(0, -1);
  const draw = () => glide(frame, drawNow);
  function drawNow() {
    // The buttons of the table are made anew: the keyboard's focus stays where it was.
    const reached = frame.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    let world = new World(setup), before = [];
    for (const operation of operations) {
      before = [...world.manager.refs];
      world.play(operation);
    }
    const { manager, requests } = world;
    const color = (name) => COLORS[(requests.get(name).number - 1) % COLORS.length];
    says.textContent = world.refused ? `Refused: ${manager.free.length} blocks are free, and that is too few. Nothing has changed.` : "";
    back.disabled = !operations.length; forward.disabled = !undone.length; add.disabled = world.count >= 26;

    table.replaceChildren();
    if (requests.size) table.append(element("tr", {}, ...["request", "tokens", "block table", ""].map((t) => element("th", {}, t))));
    for (const [name, request] of requests) {
      const mine = element("b", { style: `color:${color(name)}` }, name);
      const does = element("td");
      for (const [what, label] of [["append", "+1 token"], ["fork", "fork"], ["free", "free"]]) {
        const b = button(`${what} ${name}`, label, () => act(what, name));
        if (what === "fork") b.disabled = world.count >= 26;
        does.append(b, " ");
      }
      table.append(element("tr", { "data-request": name }, element("td", {}, mine),
        element("td", { "data-name": "tokens" }, String(request.written)),
        element("td", { "data-name": "table" }, ...listed(request.blocks, (id) => ([...requests].find(([, r]) => r.blocks.includes(id))[0] === name ? "" : name))), does));
    }

    blocks.replaceChildren();
    let held = 0, used = 0;
    for (let id = 1; id <= manager.total; id++) {
      const owners = [...requests].filter(([, r]) => r.blocks.includes(id));
      const fill = Math.max(0, ...owners.map(([, r]) => Math.min(setup.block_size, r.written - r.blocks.indexOf(id) * setup.block_size)));
      if (owners.length) { held++; used += fill; }
      const cached = manager.names[id] !== null;
      const bar = element("div", { class: "fill" });
      for (let i = 0; i < setup.block_size; i++) {
        const cell = element("i");
        if (i < fill) cell.style.background = owners.length > 1 ? "var(--ink)" : color(owners[0][0]);
        else if (!owners.length && cached) cell.style.background = "var(--muted)";
        bar.append(cell);
      }
      const who = element("div", { class: "who" });
      owners.forEach(([name]) => who.append(element("span", { style: `color:${color(name)}` }, name), " "));
      if (!owners.length) who.append(cached ? "free, kept" : "free");
      blocks.append(element("div", {
        class: "block" + (owners.length ? "" : " free") + (cached && !owners.length ? " cached" : "") + (before.length && before[id] !== manager.refs[id] ? " touched" : ""),
        "data-block": String(id), "data-refs": String(manager.refs[id]), "data-cached": String(cached),
      }, element("div", { class: "id" }, `block ${id}${owners.length > 1 ? ` × ${owners.length}` : ""}`), who, bar));
    }
    freeList.replaceChildren("free list, next one first: ", element("span", { "data-name": "free-list" }, ...(manager.free.length ? listed(manager.free, () => "") : ["empty"])));

    showCounts(counts, [["held", held], ["free", manager.free.length], ["empty places in held blocks", held * setup.block_size - used],
      ["tokens found in the cache", manager.stats.hit], ["blocks evicted", manager.stats.evicted], ["blocks copied", manager.stats.copied]]);
    const right = held + manager.free.length === manager.total;
    counts.append(element("span", { class: right ? "ok" : "wrong", "data-name": "invariant" }, `${held} + ${manager.free.length} ${right ? "=" : "≠"} ${manager.total}: ${right ? "no block is lost" : "a block is lost"}`));
    if (reached) frame.querySelector(`[data-do="${reached}"]`)?.focus();
  }
  drawNow();
}

export default { render };
