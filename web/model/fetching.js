// Fetch a file of the page. What is not there is an error, and so is a server's own page that says so.
export async function fetchWhole(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer;
}
