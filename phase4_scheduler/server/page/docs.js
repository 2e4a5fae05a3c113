// The fields of each call, as /openapi.json describes them.

const add = (parent, tag, text = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  return parent.appendChild(element);
};

const last = (reference) => reference.split("/").pop();

function kind(schema) {
  if (schema.$ref) return last(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  return schema.type ?? "any";
}

function addFields(parent, schema) {
  const table = add(parent, "table");
  const required = new Set(schema.required);
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = add(table, "tr");
    add(add(row, "td"), "code", name);
    add(row, "td", kind(field));
    add(row, "td", required.has(name) ? "required" : JSON.stringify(field.default) ?? "");
  }
}

const { paths, components } = await (await fetch("openapi.json")).json();
const calls = document.getElementById("calls");
for (const [path, { post }] of Object.entries(paths)) {
  add(calls, "h2", `POST ${path}`);
  addFields(calls, components.schemas[last(post.requestBody.content["application/json"].schema.$ref)]);
}
