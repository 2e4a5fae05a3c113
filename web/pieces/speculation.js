// Speculative decoding with both models of the page: the small one drafts, the large one checks all drafts in one step.

import { box, element, showCounts, textField, visible } from "./common.js";
import { likeliest } from "../model/sampling.js";

const STYLE = `
.spec .round { display: flex; flex-wrap: wrap; gap: 4px; align-items: baseline; margin: 3px 0; font: 13px/1.7 var(--code) }
.spec .round span { border-radius: 3px; padding: 0 4px; white-space: pre } .spec .accepted { background: var(--green-tint) }
.spec .rejected { background: var(--orange-tint); text-decoration: line-through } .spec .own { background: var(--blue-tint) }
.spec small { color: var(--ink) } .spec .text { min-height: 3em }`;

const MOST_PROMPT = 60, NEW_TOKENS = 32;

// Greedy speculation: rounds [{ drafts, accepted, own }] of token ids until NEW_TOKENS are there. `lm` is the large model.
async function speculate(lm, prompt, numDrafts) {
  const ids = [...prompt], rounds = [];
  while (ids.length < prompt.length + NEW_TOKENS) {
    const room = Math.min(numDrafts, prompt.length + NEW_TOKENS - ids.length - 1), drafts = [];
    while (drafts.length < room) drafts.push(likeliest(await lm.draft.logits([...ids, ...drafts], "speculation")));
    const answers = await answersBehind(lm, [...ids, ...drafts], drafts.length + 1);
    let accepted = 0;
    while (accepted < drafts.length && drafts[accepted] === answers[accepted]) accepted++;
    rounds.push({ drafts, accepted, own: answers[accepted] });
    ids.push(...drafts.slice(0, accepted), answers[accepted]);
  }
  return rounds;
}

// What the model says behind each of the last `count` tokens: all in one step.
async function answersBehind(lm, ids, count) {
  const { seen } = await lm.trace(ids, ["after block"]);
  const hidden = seen.at(-1).values, width = hidden.length / ids.length;
  const logits = await lm.lens(hidden.slice(-count * width)), vocabulary = logits.length / count;
  return Array.from({ length: count }, (_, i) => likeliest(logits.subarray(i * vocabulary, (i + 1) * vocabulary)));
}

// data: { text, num_drafts, rounds: [{ drafts, accepted, own }] as texts }. With `lm` (on the page) the text can be changed.
function render({ data, el, lm }) {
  const slider = element("input", { type: "range", min: "1", max: "8", value: String(data.num_drafts), "aria-label": "drafts a step" });
  const shown = element("b", {}, String(data.num_drafts)), counts = element("div", { class: "counts" });
  const list = element("div", {}), text = element("p", { class: "text", "data-name": "text", "aria-live": "polite" });
  const key = element("small", {}, "one line a step of the large model: ", element("span", { class: "accepted" }, "accepted drafts"), ", ",
    element("span", { class: "rejected" }, "rejected drafts"), ", ", element("span", { class: "own" }, "its own token"));
  slider.disabled = !lm;
  const frame = box("spec", STYLE, element("div", { class: "bar" }, element("label", {}, "drafts a step ", slider, " ", shown)), key, list, text, counts);
  el.append(frame);
  if (lm) {
    const field = textField(data.text, MOST_PROMPT, lm, async (ids, tokenizer) => {
      const rounds = await speculate(lm, ids, Number(slider.value)), word = (id) => tokenizer.decode([id]);
      draw(word, tokenizer.decode(ids), rounds);
    });
    frame.prepend(field);
    slider.addEventListener("input", () => {
      shown.textContent = slider.value;
      field.querySelector("textarea").dispatchEvent(new Event("input"));
    });
  }

  function draw(word, prompt, rounds) {
    list.replaceChildren(...rounds.map(({ drafts, accepted, own }) => element("div", { class: "round" },
      ...drafts.map((draft, i) => element("span", { class: i < accepted ? "accepted" : "rejected" }, visible(word(draft)))),
      element("span", { class: "own" }, visible(word(own))))));
    const written = rounds.flatMap(({ drafts, accepted, own }) => [...drafts.slice(0, accepted), own]);
    text.replaceChildren(element("b", {}, prompt), written.map(word).join(""));
    const drafted = rounds.reduce((sum, r) => sum + r.drafts.length, 0), accepted = rounds.reduce((sum, r) => sum + r.accepted, 0);
    showCounts(counts, [["tokens written", written.length], ["steps of the large model", rounds.length], ["drafted", drafted],
      ["accepted", drafted ? `${Math.round((100 * accepted) / drafted)}%` : "–"], ["tokens a step", (written.length / rounds.length).toFixed(2)]]);
  }
  draw((text) => text, data.text, data.rounds);
}

export default { render };
