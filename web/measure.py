"""How fast the page is in Chromium on this machine: python -m web.measure. (No test asserts on a time.)"""

import shutil
import threading

from playwright.sync_api import sync_playwright

from web.build import FOLDER, MODELS
from web.serve import make_server

CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

SPEED = """async (name) => {
  const { LanguageModel } = await import("/model/language_model.js");
  const { likeliest } = await import("/model/sampling.js");
  const lm = new LanguageModel(name);
  let began = performance.now();
  await lm.load();
  const load = (performance.now() - began) / 1000;
  const ids = (await lm.tokenizer()).encode("Once upon a time there was a");
  for (let i = 0; i < 20; i++) ids.push(likeliest(await lm.logits(ids, "a")));  // the browser compiles what is used often
  began = performance.now();
  for (let i = 0; i < 200; i++) ids.push(likeliest(await lm.logits(ids, "a")));
  const decode = 200 / ((performance.now() - began) / 1000);
  began = performance.now();
  await lm.logits(ids, "b");
  return { load, decode, prefill: ids.length / ((performance.now() - began) / 1000), prompt: ids.length };
}"""

PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main() -> None:
    server = make_server(0, FOLDER / "site")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=CHROMIUM)
        page = browser.new_page()
        for name in MODELS:
            page.goto(address + "recap.html")
            got = page.evaluate(SPEED, name)
            print(
                f"{name}: weights there after {got['load']:.2f} s; {got['decode']:.0f} tokens/s, one after the other; "
                f"{got['prefill']:.0f} tokens/s of a prompt of {got['prompt']}"
            )
        page.goto(address + "tokens.html")
        page.wait_for_timeout(500)
        print(f"first paint of a section: {page.evaluate(PAINT) / 1000:.2f} s")
        page.goto(address + "sampling.html")
        page.wait_for_selector("[data-alive]")
        ready = page.evaluate("() => performance.now()")
        print(f"its piece can be typed into after {ready / 1000:.2f} s")
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
