// How a context is divided into splits, and how the programs fill a card. All numbers come from Python's split rule.

import { box, element, showCounts, thousands } from "./common.js";

const STYLE = `
.spl .context { display: flex; height: 26px; margin: 10px 0; gap: 1px } .spl .context i { flex: 1; background: var(--blue); border-radius: 1px; min-width: 1px } .spl .context i.rest { opacity: .5 }
.spl .slots { display: flex; flex-wrap: wrap; gap: 2px; margin: 8px 0 } .spl .slots i { width: 11px; height: 11px; border-radius: 2px; background: var(--faint) } .spl .slots i.busy { background: var(--green) }`;


function render({ data, el }) {
  const slider = (name, values, value) => {
    const input = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(value)), "aria-label": name });
    input.addEventListener("input", draw);
    return input;
  };
  const card = element("select", { "aria-label": "card" });
  data.cards.forEach((c, i) => card.append(element("option", { value: String(i) }, `${c.name}: ${c.resident} resident programs`)));
  card.value = String(data.start.card);
  card.addEventListener("change", draw);
  const users = slider("requests", data.users, data.start.users), tokens = slider("tokens", data.tokens, data.start.tokens);
  const cut = element("input", { type: "checkbox", "aria-label": "split" });
  cut.checked = true;
  cut.addEventListener("change", draw);
  const usersText = element("b", { "data-name": "requests" }), tokensText = element("b", { "data-name": "tokens" });
  const context = element("div", { class: "context" }), slots = element("div", { class: "slots" }), counts = element("div", { class: "counts" });
  const caption = element("small");
  const frame = box("spl", STYLE, element("div", { class: "bar" }, card, element("label", {}, "requests ", users, " ", usersText),
    element("label", {}, "tokens each ", tokens, " ", tokensText), element("label", {}, cut, " divide contexts into splits")),
    element("small", {}, "one request's context, split by split"), context, caption, slots, counts);
  el.append(frame);

  function draw() {
    const u = Number(users.value), t = Number(tokens.value);
    // Worked out by phase5_real_gpu/kernels/split_rule.py for every position of the sliders.
    const [splits, size] = cut.checked ? data.rule[Number(card.value)][u][t] : [1, data.tokens[t]];
    const room = data.cards[Number(card.value)].resident, programs = splits * data.users[u] * data.kv_heads;
    const rounds = Math.ceil(programs / room), last = programs - (rounds - 1) * room;
    usersText.textContent = thousands(data.users[u]); tokensText.textContent = thousands(data.tokens[t]);
    context.replaceChildren();
    for (let i = 0; i < splits; i++) {
      const mine = Math.min(size, data.tokens[t] - i * size);
      context.append(element("i", { class: mine < size ? "rest" : "", style: `flex-grow:${mine}`, title: `${thousands(mine)} tokens` }));
    }
    caption.textContent = `programs that run at the same time, in ${rounds === 1 ? "the only" : "the last of " + thousands(rounds)} round${rounds === 1 ? "" : "s"}`;
    slots.replaceChildren();
    for (let i = 0; i < room; i++) slots.append(element("i", { class: i < last ? "busy" : "" }));
    showCounts(counts, [["splits", thousands(splits)], ["tokens per split", thousands(size)], ["programs", thousands(programs)],
      ["rounds", thousands(rounds)], ["tokens that pass one after another", thousands(rounds * size)],
      ["of them busy", `${Math.round((100 * programs) / (rounds * room))}%`]]);
  }
  draw();
}

export default { render };
