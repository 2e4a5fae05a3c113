// Type into a tokenizer: see the tokens, and how a word is put together, merge by merge.
// Carries the merge table, so it needs no kernel. The same rules as phase1_tokens_embeddings/tokens/bpe.py.

const STYLE = `
.tok { background:#fff; color:#1f2933; border:1px solid #e3e7eb; border-radius:10px; padding:14px; font:14px/1.5 system-ui,sans-serif }
[data-jp-theme-light="false"] .tok { filter:brightness(.87) }
.tok textarea { width:100%; box-sizing:border-box; font:15px/1.5 system-ui,sans-serif; padding:6px; color:inherit; background:#fff }
.tok .counts { display:flex; gap:24px; margin:8px 0; flex-wrap:wrap }
.tok .counts b { font-size:20px; display:block }
.tok .chips { display:flex; flex-wrap:wrap; gap:3px; max-height:260px; overflow-y:auto }
.tok button.chip { border:1px solid transparent; border-radius:4px; padding:2px 5px; cursor:pointer; font:14px ui-monospace,monospace; color:#1f2933; text-align:center }
.tok button.chip small { display:block; color:#66727f; font-size:11px }
.tok button.chip.word { border-color:#1f2933 }
.tok table { border-collapse:collapse; margin-top:6px } .tok table td { padding:2px 10px 2px 0; font:13px ui-monospace,monospace; text-align:left !important; background:#fff !important; color:#1f2933 !important }
.tok td span { background:#eef2f6; border-radius:3px; padding:1px 4px; margin-right:3px }
.tok td span.new { background:#f6d9c2 }
.tok label { color:#66727f } .tok input[type=range] { width:260px; vertical-align:middle }
.tok h4 { margin:12px 0 2px }`;
const COLORS = ["#dbe8f5", "#f9e3d3", "#d8efe2", "#eadff2", "#f7efcf"];

// White space as Unicode has it: JavaScript's own \s knows one character less and one more.
const SPLIT = /'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

function makeTokenizer(data) {
  const bytes = [];  // of each token
  for (let i = 0; i < data.byte_ids.length; i++) bytes[data.byte_ids[i]] = [i];
  const rank = new Map();
  data.merges.forEach(([left, right, merged], i) => {
    bytes[merged] = bytes[left].concat(bytes[right]);
    rank.set(left + "," + right, [i, merged]);
  });
  // The steps of one word: each merge in turn, the one learned first first.
  function steps(word, limit) {
    let ids = [...new TextEncoder().encode(word)].map((b) => data.byte_ids[b]);
    const all = [{ ids }];
    for (;;) {
      let best = limit, pair = null;
      for (let i = 0; i + 1 < ids.length; i++) {
        const found = rank.get(ids[i] + "," + ids[i + 1]);
        if (found && found[0] < best) { best = found[0]; pair = [ids[i], ids[i + 1], found[1]]; }
      }
      if (!pair) return all;
      const next = [];
      for (let i = 0; i < ids.length; i++) {
        if (i + 1 < ids.length && ids[i] === pair[0] && ids[i + 1] === pair[1]) { next.push(pair[2]); i++; }
        else next.push(ids[i]);
      }
      ids = next;
      all.push({ ids, rank: best, pair });
    }
  }
  const words = (text) => text.match(SPLIT) || [];
  return { bytes, steps, words };
}

function show(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
    return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
  } catch {  // part of a character
    return bytes.map((b) => "<" + b.toString(16).toUpperCase().padStart(2, "0") + ">").join("");
  }
}

function render({ model, el }) {
  const data = model.get("data");
  const tokenizer = makeTokenizer(data);
  const most = data.merges.length;
  const stops = [...new Set([0, 10, 50, 100, 250, 500, 1000, 2000, 4000, most].filter((n) => n <= most))];
  let chosen = null;  // the word that is taken apart

  const box = element("div", { class: "tok" });
  keepKeys(box);
  const input = element("textarea", { rows: "2", "aria-label": "text" });
  input.value = data.text;
  const slider = element("input", { type: "range", min: "0", max: String(stops.length - 1), value: String(stops.length - 1), "aria-label": "merges" });
  const limit = element("b", { "data-name": "limit" });
  const counts = element("div", { class: "counts" });
  const chips = element("div", { class: "chips" });
  const detail = element("div", { "data-name": "detail" });
  box.append(element("style", {}, STYLE), input,
    element("div", {}, element("label", {}, "merges in use: ", slider, " "), limit), counts, chips, detail);
  el.append(box);

  function draw() {
    const allowed = stops[Number(slider.value)];
    limit.textContent = `${allowed.toLocaleString("en")} of ${most.toLocaleString("en")}`;
    const text = input.value.toWellFormed ? input.value.toWellFormed() : input.value;
    const words = tokenizer.words(text);
    const encoded = words.map((word) => tokenizer.steps(word, allowed).at(-1).ids);
    const ids = encoded.flat();
    const characters = [...text].length, size = new TextEncoder().encode(text).length;
    counts.replaceChildren();
    for (const [name, value] of [["characters", characters], ["bytes", size], ["tokens", ids.length],
      ["characters a token", ids.length ? (characters / ids.length).toFixed(2) : "–"]]) {
      counts.append(element("span", {}, element("b", { "data-name": name }, String(value)), name));
    }
    chips.replaceChildren();
    let color = 0;
    words.forEach((word, w) => {
      for (const id of encoded[w]) {
        const chip = element("button", { class: "chip" + (w === chosen ? " word" : ""), "data-id": String(id),
          style: `background:${COLORS[color++ % COLORS.length]}`, title: "bytes " + tokenizer.bytes[id].join(" ") },
          show(tokenizer.bytes[id]), element("small", {}, String(id)));
        const place = chips.childElementCount;
        chip.addEventListener("click", () => { chosen = w; draw(); chips.children[place].focus(); });  // a new button, the same place
        chips.append(chip);
      }
    });
    detail.replaceChildren();
    if (chosen === null || chosen >= words.length) {
      detail.append(element("p", {}, "Click a token to see how its word was put together."));
    } else {
      detail.append(element("h4", {}, `How “${show([...new TextEncoder().encode(words[chosen])])}” is put together`));
      const table = element("table");
      for (const step of tokenizer.steps(words[chosen], allowed)) {
        const cells = element("td");
        for (const id of step.ids) {
          cells.append(element("span", { class: step.pair && id === step.pair[2] ? "new" : "" }, show(tokenizer.bytes[id])));
        }
        const what = step.pair ? `merge ${step.rank}: ${show(tokenizer.bytes[step.pair[0]])} + ${show(tokenizer.bytes[step.pair[1]])}` : "bytes";
        table.append(element("tr", { "data-ids": step.ids.join(" ") }, element("td", {}, what), cells));
      }
      detail.append(table);
    }
    model.set("state", { text, merges: allowed, ids });
    model.save_changes();
  }
  input.addEventListener("input", () => { chosen = null; draw(); });
  slider.addEventListener("input", draw);
  draw();
}

export default { render };
