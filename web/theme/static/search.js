// What a reader of the course expects of Sphinx's search: a term of the glossary first, then sections with the words in their
// titles, in the order of the course; sections with some of the words if few have all; excerpts of the text alone.

const MOST_RESULTS = 15;
let asked = [];  // the words of the query
const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
const alike = (a, b) => a === b || (Math.min(a.length, b.length) > 3 && (a.startsWith(b.replace(/s$/, "")) || b.startsWith(a.replace(/s$/, ""))));

// Every word looked up alone: a page with more of them is worth more.
const searchForAll = Search.performTermsSearch;
Search.performTermsSearch = (words, excluded) => {
  const found = new Map();
  for (const word of words) {
    for (const result of searchForAll(new Set([word]), excluded)) {
      if (found.has(result[0])) found.get(result[0])[4] += result[4];
      else found.set(result[0], result);
    }
  }
  return [...found.values()];
};

Scorer.score = ([page, title, anchor, , score]) => {
  const inTitle = wordsOf(title.split(" > ")[0]), hits = asked.filter((word) => inTitle.some((other) => alike(word, other))).length;
  const places = [...document.querySelectorAll("nav li a")].map((link) => link.getAttribute("href")), place = places.indexOf(`${page}.html`);
  return score + (40 * hits) / asked.length + (hits && !anchor ? 1 : 0) - (place < 0 ? 1 : place / 100) + (hits === asked.length ? 40 : 0);
};

const searchPages = Search._performSearch;
Search._performSearch = (query, ...rest) => {
  asked = wordsOf(query).filter((word) => !stopwords.has(word));
  return searchPages(query, ...rest).slice(-MOST_RESULTS);  // the best is the last
};

// An excerpt begins with the text: not with the line above the title, the title and the level.
const wholeText = Search.htmlToText;
Search.htmlToText = (page, anchor) => {
  const read = new DOMParser().parseFromString(page, "text/html");
  for (const part of read.querySelectorAll(".place, main h1, main h2, .task, .words, footer")) part.remove();
  for (const line of read.querySelectorAll("main p")) if (line.textContent.startsWith("Level: ")) line.remove();
  return wholeText(read.documentElement.outerHTML, anchor);
};

const said = Documentation.gettext;
Documentation.gettext = (text) => (text.startsWith("Your search did not match") ? "No section has these words. Try one of them alone, or a word of the glossary." : said(text));

// The term itself, with its definition.
async function showTerms() {
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase();
  if (!query) return;
  const glossary = new DOMParser().parseFromString(await (await fetch("glossary.html")).text(), "text/html"), list = document.createElement("ul");
  for (const entry of glossary.querySelectorAll("main p[id]")) {
    const names = entry.querySelector("strong")?.textContent.toLowerCase().split(", ") ?? [];
    if (!names.some((name) => name === query || name === query.replace(/s$/, ""))) continue;
    const link = Object.assign(document.createElement("a"), { href: `glossary.html#${entry.id}`, textContent: entry.querySelector("strong").textContent }), item = document.createElement("li");
    item.append(link, entry.textContent.slice(link.textContent.length));
    list.append(item);
  }
  if (list.childElementCount) document.getElementById("search-results").before(Object.assign(document.createElement("p"), { textContent: "In the glossary:" }), list);
}
document.addEventListener("DOMContentLoaded", showTerms);
