"""The engine behind HTTP: a process that only steps, and one that speaks OpenAI's protocol."""
