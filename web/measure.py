"""Measures the built page in Chromium: python -m web.measure. Alone on the machine, or the figures say nothing.

How fast the model in the page writes, how smoothly a long recording is scrubbed, and how soon a reader can type.
"""

import shutil
import statistics
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from phase2_attention_kvcache.model import SamplingParams
from phase3_paged_attention.paging import BlockManager
from phase4_scheduler.engine import Request, Scheduler, SchedulerConfig
from phase4_scheduler.engine.core import EngineCoreOutputs
from phase4_scheduler.engine.events import StepRecorder
from phase4_scheduler.simulator.traffic import PromptMaker, draw_traffic
from web.build import FOLDER, build
from web.serve import make_server

CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu"]
STEPS, TOKENS, ROUNDS = 10_000, 200, 3

WRITE = """async (count) => {
  const { LanguageModel } = await import("/model/language_model.js"), { likeliest } = await import("/model/sampling.js");
  window.lm ??= new LanguageModel("tales");
  const ids = (await lm.tokenizer()).encode("Once upon a time there was a king who lived by the sea.");
  await lm.logits(ids, "first");  // weights are there, and the prompt is computed
  const began = performance.now();
  for (let i = 0; i < count; i++) ids.push(likeliest(await lm.logits(ids, "first")));
  return (1000 * count) / (performance.now() - began);
}"""

SCRUB = """(seconds) => new Promise((done) => {
  const slider = document.querySelector('[data-piece="replay"] input[type=range]'), last = Number(slider.max);
  const frames = [], work = [];
  let began = null;
  function frame(now) {
    began ??= now;
    frames.push(now);
    const share = (now - began) / 1000 / seconds;
    if (share >= 1) return done({ frames: (1000 * (frames.length - 1)) / (frames.at(-1) - frames[0]), work, longest: Math.max(...frames.slice(1).map((t, i) => t - frames[i])) });
    const start = performance.now();
    slider.value = String(Math.round(last * (0.5 + 0.5 * Math.sin(6 * share))));  // to and fro, as a hand does
    slider.dispatchEvent(new Event("input"));
    work.push(performance.now() - start);
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
})"""

PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def record_long_run(file: Path, steps: int = STEPS) -> None:
    """A recording of so many steps, as the course's scheduler decides them for a stream of chats. No model is behind it."""
    traffic, prompts = draw_traffic("chat", steps // 8, 1.0), PromptMaker()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=512), BlockManager(num_blocks=800)
    )
    recorder = StepRecorder(file, scheduler)
    for number in range(steps):
        while len(scheduler.waiting) < 4 and traffic:
            asked = traffic.pop()
            params = SamplingParams(max_tokens=asked.output_tokens, ignore_eos=True)
            scheduler.add(
                Request(f"chat-{len(traffic)}", prompts.prompt(asked, len(traffic)), params, float(number))
            )
        output = scheduler.schedule()
        scheduler.update(output, [0 if s.samples else None for s in output.scheduled])
        recorder.record(number, EngineCoreOutputs([], output, float(number), number + 1.0))


def fresh(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    page.set_default_timeout(60_000)
    return page


def measure_writing(browser: Browser, address: str) -> float:
    """Tokens a second: `tales`, greedy, one after the other. The best of some rounds."""
    page = fresh(browser)
    page.goto(f"{address}recap.html")
    return max(page.evaluate(WRITE, TOKENS) for _ in range(ROUNDS))


def measure_scrubbing(browser: Browser, address: str, file: Path) -> tuple[float, float, float]:
    """Frames a second while a hand moves the slider, milliseconds of work in a frame (median), and the longest frame."""
    page = fresh(browser)
    page.goto(f"{address}scheduler.html")
    piece = page.locator('[data-piece="replay"]')
    piece.scroll_into_view_if_needed()
    page.wait_for_selector('[data-piece="replay"][data-alive]')
    piece.get_by_label("a recording of your own").set_input_files(file)
    piece.get_by_text(f"of {STEPS}").wait_for()
    moved = page.evaluate(SCRUB, 5)
    return moved["frames"], statistics.median(moved["work"]), moved["longest"]


def measure_start(browser: Browser, address: str) -> tuple[float, float, float]:
    """Milliseconds until something is painted, until a reader can type, and until the model has answered to that. Nothing is in
    the browser's cache. Medians of some rounds.
    """
    rounds = []
    for _ in range(ROUNDS):
        page = fresh(browser)
        page.goto(f"{address}sampling.html", wait_until="commit")
        page.wait_for_function(PAINTED)
        page.locator('[data-piece="sampling"]').scroll_into_view_if_needed()
        page.wait_for_selector('[data-piece="sampling"][data-alive] textarea')
        ready = page.evaluate("performance.now()")
        before = page.locator(".sam [data-id]").first.get_attribute("data-id")
        page.locator('[data-piece="sampling"] textarea').fill("The little")
        page.wait_for_function(
            "(old) => document.querySelector('.sam [data-id]')?.dataset.id !== old", arg=before
        )
        rounds.append((page.evaluate(PAINTED), ready, page.evaluate("performance.now()")))
        page.context.close()
    return tuple(map(statistics.median, zip(*rounds)))


def main() -> int:
    site = FOLDER / "site"
    server = make_server(0, site if (site / "index.html").is_file() else build())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        file = Path(folder) / "run.jsonl"
        record_long_run(file)
        painted, ready, answered = measure_start(browser, address)
        frames, work, longest = measure_scrubbing(browser, address, file)
        rows = [
            ("tokens a second, tales", measure_writing(browser, address), ">=", 60.0),
            (f"frames a second, {STEPS:,} steps", frames, ">=", 59.5),
            ("ms of work in a frame, median", work, "<=", 1000 / 60),
            ("ms, the longest frame", longest, "<=", 50.0),
            ("ms until something is painted", painted, "<=", 1000.0),
            ("ms until a reader can type", ready, "<=", 3000.0),
            ("ms until the model has answered", answered, "<=", 3000.0),
        ]
        print(f"Chromium {browser.version}")
        browser.close()
    server.shutdown()
    held = [value >= bar if sign == ">=" else value <= bar for _, value, sign, bar in rows]
    for (name, value, sign, bar), holds in zip(rows, held, strict=True):
        print(f"{name:34} {value:9.1f}   {sign} {bar:7.1f}   {'yes' if holds else 'NO'}")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
