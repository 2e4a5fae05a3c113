// The MLP as an archive: which of its drawers a text opens, and which words their contents raise.

import { box, button, element, showCounts, textField, visible } from "./common.js";

const STYLE = `
.dra .text { line-height: 2; margin: 8px 0 } .dra .text button { border: 0; padding: 2px; min-height: 0; white-space: pre-wrap; border-radius: 3px; background: none } .dra .text button[aria-pressed="true"] { outline: 2px solid var(--orange) }
.dra .row { border-top: 1px solid var(--line); padding: 8px 0 } .dra .along span { padding: 2px 1px; border-radius: 2px; white-space: pre-wrap } .dra .along { font-size: 13px; line-height: 1.9 }
.dra .raises b { background: var(--green-tint); border-radius: 3px; padding: 1px 4px; margin-right: 4px; font-weight: 500; white-space: pre }`;

const MOST_TOKENS = 30, SHOWN = 6, OPEN = 0.5;

// data: { text, tokens, layer, layers, rows: [{ drawer, values (along the text), raises }], drawers, open }.
function render({ data, el, lm }) {
  let tokens = data.tokens.map(visible), at = tokens.length - 1, ids = null, seen = null, names = null, calls = 0;  // seen: values of each layer, [tokens x drawers]
  const layer = element("select", { "aria-label": "layer" });
  for (let i = 0; i < data.layers; i++) if (lm || i === data.layer) layer.append(element("option", { value: String(i) }, String(i + 1)));
  layer.value = String(data.layer);
  layer.addEventListener("change", () => go(at));
  const text = element("div", { class: "text" }), says = element("p", { "data-name": "says", "aria-live": "polite" }), rows = element("div"), counts = element("div", { class: "counts" });
  const frame = box("dra", STYLE, element("div", { class: "bar" }, element("label", {}, "layer ", layer)), text, says, counts, rows);
  if (lm) frame.prepend(textField(data.text, MOST_TOKENS, lm, ask));
  el.append(frame);

  async function ask(asked, tokenizer, chosen = asked.length - 1) {
    const trace = await lm.trace(asked, ["drawers"]);
    [ids, names, seen] = [asked, tokenizer, trace.seen.map(({ values }) => values)];
    const shown = ids.map((id) => tokenizer.show(id));
    if (shown.join("|") !== tokens.join("|")) { tokens = shown; write(); }
    await go(chosen);
  }

  // To a token. What stands there first was computed by Python, for one layer; the rest is computed when it is asked for.
  async function go(chosen) {
    if (!seen) {
      const tokenizer = await lm.tokenizer();
      return ask(tokenizer.encode(data.text), tokenizer, chosen);
    }
    const call = ++calls;
    at = chosen;
    const values = seen[Number(layer.value)], width = values.length / ids.length, mine = values.slice(at * width, (at + 1) * width);
    const given = await lm.drawers(Number(layer.value), mine, SHOWN);
    if (call === calls) draw(given.map(({ drawer, tokens: raised }) => ({ drawer, values: ids.map((_, t) => values[t * width + drawer]), raises: raised.map(([id]) => names.show(id)) })),
      mine.reduce((n, v) => n + (v > OPEN), 0));
  }

  function write() {
    text.replaceChildren(...tokens.map((token, i) => {
      const choice = button(`token ${i}`, visible(token), () => go(i));
      choice.disabled = !lm;
      return choice;
    }));
  }

  function draw(given, open) {
    [...text.children].forEach((choice, i) => choice.setAttribute("aria-pressed", String(i === at)));
    says.replaceChildren("A drawer is one of the MLP's inner numbers: its row of the first matrix says when it opens, its column of the second is its content. ", element("b", {}, `“${visible(tokens[at])}”`), ` in layer ${Number(layer.value) + 1}: the ${SHOWN} drawers that hand out most. The colour says where in the text each of them is open.`);
    showCounts(counts, [["drawers in this layer", data.drawers.toLocaleString("en")], [`of them open (above ${OPEN})`, open], ["furthest open, of those below", Math.max(...given.map((row) => row.values[at])).toFixed(2)]]);
    rows.replaceChildren(...given.map(({ drawer, values, raises }) => {
      const most = Math.max(...values.map(Math.abs), 1e-6);
      return element("div", { class: "row", "data-drawer": String(drawer) }, element("b", {}, `drawer ${drawer}`), ", open ", element("b", { "data-name": "value" }, values[at].toFixed(2)),
        element("div", { class: "along" }, ...values.map((v, t) => element("span", { title: `${visible(tokens[t])}: ${v.toFixed(2)}`, style: v > 0 ? `background:color-mix(in srgb, var(--blue-tint) ${(100 * v / most).toFixed(0)}%, transparent)` : "" }, visible(tokens[t])))),
        element("div", { class: "raises" }, values[at] < 0 ? "lowers " : "raises ", ...raises.map((word) => element("b", {}, visible(word)))));
    }));
  }
  write();
  draw(data.rows, data.open);
}

export default { render };
