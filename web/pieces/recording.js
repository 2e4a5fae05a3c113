// What engine.record wrote, read and followed: the state of every request after any step, from the events alone.

const NEEDED = ["tokens", "computed", "blocks", "preempted", "finished", "running", "waiting", "free_blocks", "taken", "hit", "freed", "evicted"];
const EVERY = 32;  // steps between two states that are kept; those between are computed when they are shown

// One line of a recording, or one event of a server's stream, as the piece needs it. where: for the message.
function eventOf(text, where) {
  let event;
  try { event = JSON.parse(text); } catch { throw new Error(`${where} is not JSON: was the file cut off?`); }
  const missing = NEEDED.find((name) => event?.[name] === undefined);
  if (missing) throw new Error(`${where} has no "${missing}": this is no recording of engine.record`);
  const drafts = Object.entries(event.drafted ?? {}).map(([n, drafted]) => [n, { words: drafted.map((id) => (id < 0 ? "" : String(id))), accepted: event.accepted[n] }]);
  return { ...event, arrived: [], said: {}, drafts: Object.fromEntries(drafts) };
}

// A file of JSON lines -> what the piece shows. Prompts and texts are not in it, nor the engine's limits: what was
// the most in any step stands for them.
export function readRecording(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("the file is empty: give engine.record a path, and run some steps");
  const events = lines.map((line, i) => eventOf(line, `line ${i + 1}`));
  const names = [...new Set(events.flatMap((event) => Object.keys(event.tokens)))];
  const held = new Set(Object.entries(events[0].blocks).flatMap(([n, blocks]) => (n in events[0].finished ? [] : blocks)));
  return {
    events, requests: Object.fromEntries(names.map((n) => [n, {}])), num_blocks: held.size + events[0].free_blocks,
    budget: Math.max(...events.map(tokensOf)), sequences: Math.max(...events.map(numRunning)), guessed: true, silent: true,
  };
}

// What a running server told of its engine -> a recording without steps yet. `Follower.append` takes them as they come.
export function emptyRecording({ num_blocks, block_size, max_num_seqs, max_num_batched_tokens }) {
  return { events: [], requests: {}, num_blocks, block_size, budget: max_num_batched_tokens, sequences: max_num_seqs, silent: true };
}

export const tokensOf = (event) => Object.values(event.tokens).reduce((a, b) => a + b, 0);
const numRunning = (event) => event.running + Object.keys(event.finished).length;  // with those that ended in this step

// Why requests still wait after a step: the scheduler's rules, in their order (phase4_scheduler/engine/scheduler.py).
export function whyWaiting(event, { budget, sequences }) {
  if (!event.waiting) return "";
  if (event.preempted.length) return "a request was preempted, and then none is admitted";
  if (tokensOf(event) >= budget) return "the budget is used up";
  if (numRunning(event) >= sequences) return "max_num_seqs requests are running";
  return "the first in the queue needs more blocks than are free";
}

const NOT_HERE = { state: "not here yet", computed: 0, doing: 0, written: 0, text: "", table: [] };

export class Follower {
  constructor({ requests, events }) {
    Object.assign(this, { requests, events, kept: [{}] });
    for (let i = 0; i < events.length; i += EVERY) if (i) this.kept.push(this.after(i - 1));
  }

  // A step of an engine that runs.
  append(text) {
    const { events, requests } = this;
    if (events.length && events.length % EVERY === 0) this.kept.push(this.after(events.length - 1));
    events.push(eventOf(text, `step ${events.length + 1}`));
    for (const n of Object.keys(events.at(-1).tokens)) requests[n] ??= {};
  }

  // name -> { state, computed, doing, written, text, table } after a step.
  after(at) {
    const from = Math.min(Math.floor(at / EVERY), this.kept.length - 1), people = Object.fromEntries(Object.keys(this.requests).map((n) => [n, this.kept[from][n] ?? NOT_HERE]));
    for (let i = from * EVERY; i <= at; i++) step(people, this.events[i]);
    const now = this.events[at].tokens;
    for (const n in people) if (people[n].doing && !(n in now)) people[n] = { ...people[n], doing: 0 };
    return people;
  }
}

function step(people, event) {
  const change = (n, what) => { people[n] = { ...people[n], ...what }; };
  for (const n of event.arrived) change(n, { state: "waiting" });
  for (const n of event.preempted) change(n, { state: "preempted", computed: 0, table: [] });
  for (const [n, count] of Object.entries(event.tokens)) {
    // Drafts that do not stand were computed for nothing; those that do come beside the model's own token.
    const { words, accepted } = (event.drafts || {})[n] || { words: [], accepted: 0 };
    change(n, { state: "running", doing: count, written: people[n].written + accepted,
      computed: event.computed[n] + count - words.length + accepted, table: event.blocks[n] });
  }
  for (const [n, text] of Object.entries(event.said)) change(n, { text: people[n].text + text, written: people[n].written + 1 });
  for (const [n, why] of Object.entries(event.finished)) change(n, { state: "finished: " + why, table: [] });
}
