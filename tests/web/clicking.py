"""What tests of pieces do and read."""

from playwright.sync_api import expect

expect.set_options(timeout=60_000)


def slide(piece, label: str, value: float) -> None:
    piece.get_by_label(label, exact=True).evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
    )


def shown(piece, name: str) -> str:
    return piece.locator(f'[data-name="{name}"]').text_content()


def number(text: str) -> float:
    """ "1,070 ms" is 1070."""
    return float(text.split()[0].replace(",", ""))
