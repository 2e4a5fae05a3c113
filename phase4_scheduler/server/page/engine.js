// The engine as /live tells it, twice a second: for all users, whatever client they use.

import { drawLine } from "./line.js";

const EVERY = 500; // milliseconds
const POINTS = 120; // of the history: a minute
const MOST_CELLS = 480;

const byId = (id) => document.getElementById(id);
const whole = (number) => Math.round(number).toLocaleString("en");
const rates = Array(POINTS).fill(0);
const recent = []; // replies of the last second, over which the rate is taken
let cells = [], blocksACell = 1;

// Calls `onLive` with each reply. Rests while the page is in the background.
export async function watchEngine(onLive) {
  for (;;) {
    if (!document.hidden) await look(onLive);
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

async function look(onLive) {
  let live, complaint = "No answer from the server. Does lab serve still run?";
  try {
    const response = await fetch("live", { signal: AbortSignal.timeout(10_000) });
    live = await response.json();
    complaint = response.ok ? "" : live.error.message;
  } catch {
    // The line says so.
  }
  if (byId("gone").textContent !== complaint) byId("gone").textContent = complaint;
  document.body.classList.toggle("gone", complaint !== "");
  if (complaint) return;
  show(live);
  onLive(live);
}

function show(live) {
  recent.push(live);
  if (recent.length > 3) recent.shift();
  const tokens = live.generation_tokens - recent[0].generation_tokens;
  rates.push(tokens > 0 ? tokens / (live.time - recent[0].time) : 0); // a server started again counts from 0
  rates.shift();
  byId("running").textContent = whole(live.num_requests_running);
  byId("waiting").textContent = whole(live.num_requests_waiting);
  byId("rate").textContent = whole(rates.at(-1));
  byId("preemptions").textContent = whole(live.num_preemptions);
  const { prefix_cache_queries: queries, prefix_cache_hits: hits } = live;
  byId("hit-rate").textContent = queries ? `${((100 * hits) / queries).toFixed(0)}%` : "–";
  const most = Math.max(...rates);
  byId("rate-top").textContent = most ? `at most ${whole(most)}` : "";
  drawLine(byId("rate-history"), rates, most);
  showBlocks(live.num_blocks_used, live.num_blocks, live.block_size);
}

function showBlocks(used, total, size) {
  if (!cells.length) {
    blocksACell = Math.ceil(total / MOST_CELLS);
    cells = Array.from({ length: Math.ceil(total / blocksACell) }, () => document.createElement("i"));
    byId("grid").append(...cells);
    const cell = blocksACell === 1 ? "a block" : `${blocksACell} blocks`;
    byId("block-note").textContent = `A square is ${cell}. A block holds the keys and values of ${size} tokens.`;
  }
  byId("used").textContent = whole(used);
  byId("blocks").textContent = `${whole(used)} of ${whole(total)} blocks, ${((100 * used) / total).toFixed(1)}%`;
  cells.forEach((cell, i) => {
    const share = Math.max(0, Math.min(1, used / blocksACell - i));
    cell.style.setProperty("--full", share === 0 ? 0 : 0.3 + 0.7 * share); // one block is to be seen, too
  });
}
