// A server in virtual time: the rules of `Scheduler` (phase4_scheduler/engine/scheduler.py: first come, first served, prompts
// in chunks, the last to come is preempted), and the clock of `ComputedCost`. Without a prefix cache: of a block only its
// being free counts. Tests hold every token's time against Python's.

const PLACES = 16;  // tokens in a block

// Seconds of a step, from what it has to do (`StepSize`).
function stepSeconds(cost, { tokens, requests, context, pairs }) {
  const operations = 2 * tokens * cost.weights + 2 * requests * cost.head + cost.attention * pairs;
  return Math.max(operations / cost.ceilings.rate, (cost.weight_bytes + cost.kv_bytes * context) / cost.ceilings.bandwidth);
}

// traffic: [{ arrival, prompt, answer }] by arrival. Returns { records (in the order in which they finished, with the times
// of their tokens), steps: [{ begin, seconds, waiting, usage }], preemptions }.
export function simulate(traffic, { sequences, budget, blocks }, cost) {
  const run = { records: [], steps: [], preemptions: 0 }, waiting = [];
  let running = [], free = blocks - 1, now = 0;  // block 0 is the null block
  const blocksFor = (tokens) => Math.ceil(tokens / PLACES), sizeOf = (r) => r.prompt + r.times.length;

  // How many tokens of which requests: { who, counts }, and the size of the step.
  function schedule() {
    const plan = { who: [], counts: [], tokens: 0, requests: 0, context: 0, pairs: 0 };
    let left = budget, preempted = false;
    const take = (request, n) => {
      const needed = blocksFor(request.computed + n);
      free -= needed - request.held;
      request.held = needed;
      plan.who.push(request);
      plan.counts.push(n);
      plan.tokens += n;
      plan.requests++;
      plan.context += request.computed + n;
      plan.pairs += (n * (2 * request.computed + n + 1)) / 2;
      left -= n;
    };
    // 1. Running requests go on, in their order. If the blocks run out, the last one to come is preempted.
    for (let i = 0; i < running.length && left > 0; i++) {
      const request = running[i], n = Math.min(sizeOf(request) - request.computed, left);
      let victim = null;
      while (victim !== request && blocksFor(request.computed + n) - request.held > free) {
        victim = running.pop();
        free += victim.held;
        victim.held = victim.computed = 0;
        waiting.unshift(victim);
        run.preemptions++;
        preempted = true;
      }
      if (victim === request) return plan;
      take(request, n);
    }
    // 2. If none was preempted, waiting requests are admitted: within max_num_seqs, and with blocks for all of their tokens.
    while (!preempted && waiting.length && left > 0 && running.length < sequences && blocksFor(sizeOf(waiting[0])) <= free) {
      const request = waiting.shift();
      running.push(request);
      take(request, Math.min(sizeOf(request), left));
    }
    return plan;
  }

  function step() {
    const plan = schedule();
    if (!plan.requests) return;
    const seconds = stepSeconds(cost, plan), before = run.records.length;
    run.steps.push({ begin: now, seconds, waiting: waiting.length, usage: 1 - free / (blocks - 1) });
    now += seconds;
    plan.who.forEach((request, i) => {
      request.computed += plan.counts[i];
      if (request.computed < sizeOf(request)) return;  // still in its prompt
      request.times.push(now);
      if (request.times.length < request.answer) return;
      free += request.held;
      run.records.push(request);
    });
    if (run.records.length > before) running = running.filter((r) => r.times.length < r.answer);
  }

  for (const { arrival, prompt, answer } of traffic) {
    while ((running.length || waiting.length) && now < arrival) step();
    now = Math.max(now, arrival);
    waiting.push({ arrival, prompt, answer, computed: 0, held: 0, times: [] });
  }
  while (running.length || waiting.length) step();
  return run;
}

// The value that `rank` percent stay below; between two values on the straight line.
export function percentile(values, rank) {
  const sorted = Float64Array.from(values).sort(), place = ((sorted.length - 1) * rank) / 100, low = Math.floor(place);
  return sorted.length ? sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low) : 0;
}

// Requests a second that the server gets done while some always wait: `capacity` of phase4_scheduler/simulator/load_tests.py.
export function capacityOf(traffic, limits, cost) {
  const run = simulate(traffic.map((r) => ({ ...r, arrival: 0 })), limits, cost), { records, steps } = run;
  const length = records.reduce((sum, r) => sum + r.answer, 0) / records.length;
  const tokens = records.flatMap((r) => r.times), last = steps.findLast((s) => s.waiting);
  let begin = records[Math.floor(records.length / 10)].times.at(-1), end = last ? last.begin : 0;
  let done = tokens.filter((t) => t > begin && t <= end).length;
  if (done < tokens.length / 10) [begin, end, done] = [0, steps.at(-1).begin + steps.at(-1).seconds, tokens.length];  // hardly any waited
  return done / (end - begin) / length;
}

// What users feel at `rate` requests a second: `load_point` there. The first fifth of the requests does not count.
export function feltAt(traffic, rate, limits, cost, slo) {
  const timed = traffic.map((r) => ({ ...r, arrival: r.arrival / rate })), run = simulate(timed, limits, cost);
  const since = timed[Math.floor(timed.length / 5)].arrival, until = timed.at(-1).arrival;
  const records = run.records.filter((r) => r.arrival >= since), ttft = records.map((r) => r.times[0] - r.arrival);
  const tpot = records.map((r) => (r.times.length > 1 ? (r.times.at(-1) - r.times[0]) / (r.times.length - 1) : 0));
  const gaps = records.flatMap((r) => r.times.slice(1).map((t, i) => t - r.times[i]));
  const seconds = records.reduce((most, r) => Math.max(most, r.times.at(-1)), 0) - since;
  const good = records.filter((_, i) => ttft[i] <= slo.ttft && tpot[i] <= slo.tpot).length;
  let used = 0, busy = 0;
  for (const s of run.steps) if (s.begin >= since && s.begin <= until) { used += s.usage * s.seconds; busy += s.seconds; }
  return { rate, tokens: records.reduce((sum, r) => sum + r.times.length, 0) / seconds, ttft50: percentile(ttft, 50), ttft95: percentile(ttft, 95), itl95: percentile(gaps, 95),
    good: good / records.length, usage: busy ? used / busy : 0, preemptions: run.preemptions };
}
