// A long prompt among users who write: whole, and in chunks. Every step is drawn as long as it takes, by the rules of
// `ComputedCost` in phase4_scheduler/simulator/cost_model.py.

import { box, element, short, showCounts, thousands } from "./common.js";

const STYLE = `
.chu .strip { display: flex; gap: 1px; height: 26px; background: var(--faint); border-radius: 3px; overflow: hidden; margin: 4px 0 }
.chu .strip i { display: block; background: var(--blue); min-width: 0 } .chu h4 small { font-weight: 400 }`;

const USERS = [1, 2, 4, 8, 16, 32, 64, 128], PROMPTS = [500, 1000, 2000, 4000, 8000], BUDGETS = [192, 256, 512, 1024, 2048, 4096, 8192];

// Requests as [tokens before, tokens now] -> seconds of the step in which they all are.
function secondsOf(cost, parts) {
  let tokens = 0, context = 0, pairs = 0;
  for (const [before, n] of parts) { tokens += n; context += before + n; pairs += (n * (2 * before + n + 1)) / 2; }
  const operations = 2 * tokens * cost.weights + 2 * parts.length * cost.head + cost.attention * pairs;
  return Math.max(operations / cost.ceilings.rate, (2 * (cost.weights + cost.head) + cost.kv_bytes * context) / cost.ceilings.bandwidth);
}

// Seconds of each step until the prompt is computed. Each user takes one token of the budget, the prompt the rest.
function stepsOf(cost, users, context, prompt, budget) {
  const seconds = [];
  for (let done = 0; done < prompt;) {
    const chunk = Math.min(prompt - done, budget - users), writing = Array(users).fill([context + seconds.length, 1]);
    seconds.push(secondsOf(cost, [...writing, [done, chunk]]));
    done += chunk;
  }
  return seconds;
}

function render({ data, el }) {
  const { cards, costs, context, start } = data;
  const card = element("select", { "aria-label": "card" });
  for (const [name, title] of Object.entries(cards)) card.append(element("option", { value: name }, title));
  card.value = start.card;
  card.addEventListener("change", draw);
  const bars = [["users who write", USERS, start.users], ["tokens of the prompt", PROMPTS, start.prompt], ["tokens a step (the budget)", BUDGETS, start.budget]].map(([label, values, at]) => {
    const slider = element("input", { type: "range", min: "0", max: String(values.length - 1), value: String(values.indexOf(at)), "aria-label": label }), shown = element("b");
    slider.addEventListener("input", draw);
    return { label, slider, shown, value: () => values[Number(slider.value)] };
  });
  const ways = element("div", { "aria-live": "polite" });
  el.append(box("chu", STYLE, element("div", { class: "bar" }, card, ...bars.map(({ label, slider, shown }) => element("label", {}, label, " ", slider, " ", shown))), ways));

  function draw() {
    const [users, prompt, budget] = bars.map(({ shown, value }) => { shown.textContent = thousands(value()); return value(); });
    const cost = costs[card.value], ms = (seconds) => `${short(1e3 * seconds)} ms`;
    const alone = secondsOf(cost, Array(users).fill([context, 1]));
    const all = [["whole", prompt + users], ["in chunks", budget]].map(([way, limit]) => [way, stepsOf(cost, users, context, prompt, limit)]);
    const longest = Math.max(...all.map(([, seconds]) => seconds.reduce((a, b) => a + b, 0)));
    ways.replaceChildren(...all.map(([way, seconds]) => {
      const counts = element("div", { class: "counts" }), sum = seconds.reduce((a, b) => a + b, 0), most = Math.max(...seconds);
      showCounts(counts, [["longest wait for a token", ms(most)], ["times a step without the prompt", (most / alone).toFixed(1)], ["first token of the prompt after", ms(sum)], ["steps", seconds.length]]);
      return element("div", { "data-way": way }, element("h4", {}, way, " ", element("small", {}, "each piece is a step, in which all users get a token")),
        element("div", { class: "strip" }, ...seconds.map((s) => element("i", { style: `width:${(100 * s) / longest}%`, title: ms(s) }))), counts);
    }));
  }
  draw();
}

export default { render };
