// How a context is cut into splits, and how the programs fill a card. All numbers come from Python's split rule.

import { element, keepKeys } from "./common.js";

const STYLE = `
.spl { background:#fff; color:#1f2933; border:1px solid #e3e7eb; border-radius:10px; padding:14px; font:14px/1.5 system-ui,sans-serif }
[data-jp-theme-light="false"] .spl { filter:brightness(.87) }
.spl .bar { display:flex; gap:18px; flex-wrap:wrap; align-items:center } .spl select { font:inherit; color:inherit; background:#fff } .spl input[type=range] { width:150px; vertical-align:middle }
.spl .context { display:flex; height:26px; margin:10px 0; gap:1px } .spl .context i { flex:1; background:#2f6fb0; border-radius:1px; min-width:1px } .spl .context i.rest { background:#9dbfe0 }
.spl .slots { display:flex; flex-wrap:wrap; gap:2px; margin:8px 0 } .spl .slots i { width:11px; height:11px; border-radius:2px; background:#eef2f6 } .spl .slots i.busy { background:#3c9d6b }
.spl .counts { display:flex; gap:22px; flex-wrap:wrap } .spl .counts b { display:block; font-size:18px } .spl small { color:#66727f }`;

const thousands = (n) => n.toLocaleString("en");

function render({ model, el }) {
  const data = model.get("data");
  const box = element("div", { class: "spl" });
  keepKeys(box);
  const slider = (name, values, value) => {
    const input = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(value)), "aria-label": name });
    input.addEventListener("input", draw);
    return input;
  };
  const card = element("select", { "aria-label": "card" });
  data.cards.forEach((c, i) => card.append(element("option", { value: String(i) }, `${c.name}: ${c.resident} programs at a time`)));
  card.value = String(data.start.card);
  card.addEventListener("change", draw);
  const users = slider("users", data.users, data.start.users), tokens = slider("tokens", data.tokens, data.start.tokens);
  const cut = element("input", { type: "checkbox", "aria-label": "cut" });
  cut.checked = true;
  cut.addEventListener("change", draw);
  const usersText = element("b", { "data-name": "users" }), tokensText = element("b", { "data-name": "tokens" });
  const context = element("div", { class: "context" }), slots = element("div", { class: "slots" }), counts = element("div", { class: "counts" });
  const caption = element("small");
  box.append(element("style", {}, STYLE), element("div", { class: "bar" }, card, element("label", {}, "users ", users, " ", usersText),
    element("label", {}, "tokens each ", tokens, " ", tokensText), element("label", {}, cut, " cut contexts into splits")),
    element("small", {}, "one user's context, split by split"), context, caption, slots, counts);
  el.append(box);

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
    counts.replaceChildren();
    const show = (name, value) => counts.append(element("span", {}, element("b", { "data-name": name }, value), name));
    show("splits", thousands(splits)); show("tokens a split", thousands(size)); show("programs", thousands(programs));
    show("rounds", thousands(rounds)); show("tokens that pass one after another", thousands(rounds * size));
    show("of them busy", `${Math.round((100 * programs) / (rounds * room))}%`);
    model.set("state", { users: data.users[u], tokens: data.tokens[t], card: data.cards[Number(card.value)].name, splits });
    model.save_changes();
  }
  draw();
}

export default { render };
