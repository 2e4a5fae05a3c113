// Server-sent events of an answer that is still being written.

// Yields what each read brought: the JSON of one event or more, without the [DONE] at the end.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = ""; // an event of which the end has not come yet
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (begun + value).split("\n\n");
    begun = pieces.pop();
    const data = pieces.map((piece) => piece.slice("data: ".length)).filter((text) => text !== "[DONE]");
    if (data.length) yield data.map(JSON.parse);
  }
}
