// Type into a tokenizer: see the tokens, and how a word is put together, merge by merge.
// Carries the merge table, so it needs no kernel.

import { box, element, followAddress, showCounts } from "./common.js";
import { Tokenizer, showBytes } from "../model/tokenizer.js";

const STYLE = `
.tok .chips { display: flex; flex-wrap: wrap; gap: 3px; max-height: 260px; overflow-y: auto; padding: 3px }
.tok button.chip { border: 1px solid transparent; border-radius: 4px; padding: 2px 5px; font: 14px/1.4 var(--code); text-align: center }
.tok button.chip small { display: block; color: var(--ink); font-size: 11px }
.tok button.chip.word { border-color: var(--ink) }
.tok .tint0 { background: light-dark(#dbe8f5, #23405c) } .tok .tint1 { background: light-dark(#f9e3d3, #573a22) }
.tok .tint2 { background: light-dark(#d8efe2, #1f4733) } .tok .tint3 { background: light-dark(#eadff2, #43325a) }
.tok .tint4 { background: light-dark(#f7efcf, #4c4421) }
.tok td span { background: var(--faint); border-radius: 3px; padding: 1px 4px; margin-right: 3px }
.tok td span.new { background: var(--orange-tint) }`;

function render({ data, el }) {
  const tokenizer = new Tokenizer(data);
  const most = data.merges.length;
  const stops = [...new Set([0, 10, 50, 100, 250, 500, 1000, 2000, 4000, most].filter((n) => n <= most))];
  let chosen = null;  // the word that is taken apart

  const input = element("textarea", { rows: "2", "aria-label": "text" });
  input.value = data.text;
  const slider = element("input", { type: "range", min: "0", max: String(stops.length - 1), value: String(stops.length - 1), "aria-label": "merges" });
  const limit = element("b", { "data-name": "limit" });
  const counts = element("div", { class: "counts" });
  const chips = element("div", { class: "chips" });
  const detail = element("div", { "data-name": "detail", "aria-live": "polite" });
  el.append(box("tok", STYLE, input,
    element("div", { class: "bar" }, element("label", {}, "merges in use: ", slider), limit), counts, chips, detail));

  function draw() {
    const allowed = stops[Number(slider.value)];
    limit.textContent = `${allowed.toLocaleString("en")} of ${most.toLocaleString("en")}`;
    const text = input.value.toWellFormed();
    const words = tokenizer.words(text);
    const encoded = words.map((word) => tokenizer.steps(word, allowed).at(-1).ids);
    const ids = encoded.flat();
    const characters = [...text].length, size = new TextEncoder().encode(text).length;
    showCounts(counts, [["characters", characters], ["bytes", size], ["tokens", ids.length],
      ["characters a token", ids.length ? (characters / ids.length).toFixed(2) : "–"]]);
    chips.replaceChildren();
    let tint = 0;
    words.forEach((word, w) => {
      for (const id of encoded[w]) {
        const chip = element("button", { class: `chip tint${tint++ % 5}` + (w === chosen ? " word" : ""), "data-id": String(id),
          title: "bytes " + tokenizer.bytes[id].join(" ") }, tokenizer.show(id), element("small", {}, String(id)));
        const place = chips.childElementCount;
        chip.addEventListener("click", () => { chosen = w; draw(); chips.children[place].focus(); });  // a new button, the same place
        chips.append(chip);
      }
    });
    detail.replaceChildren();
    if (chosen === null || chosen >= words.length) {
      detail.append(element("p", {}, "Click a token to see how its word was put together."));
    } else {
      detail.append(element("h4", {}, `How “${showBytes([...new TextEncoder().encode(words[chosen])])}” is put together`));
      const table = element("table");
      for (const step of tokenizer.steps(words[chosen], allowed)) {
        const cells = element("td");
        for (const id of step.ids) {
          cells.append(element("span", { class: step.pair && id === step.pair[2] ? "new" : "" }, tokenizer.show(id)));
        }
        const what = step.pair ? `merge ${step.rank}: ${tokenizer.show(step.pair[0])} + ${tokenizer.show(step.pair[1])}` : "bytes";
        table.append(element("tr", { "data-ids": step.ids.join(" ") }, element("td", {}, what), cells));
      }
      detail.append(table);
    }
  }
  input.addEventListener("input", () => { chosen = null; draw(); });
  slider.addEventListener("input", draw);
  draw();
  followAddress(input);
}

export default { render };
