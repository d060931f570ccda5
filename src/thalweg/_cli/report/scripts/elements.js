// Elements, and names that fit into them.
const $ = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...inside) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
};
const elide = (text, letters) => {
  if (text.length <= letters) return text;
  const tail = Math.ceil((letters - 1) * 0.6), head = Math.max(0, letters - 1 - tail);
  return `${text.slice(0, head)}…${text.slice(text.length - tail)}`;
};
const letters = make("span", { class: "name" }, "0".repeat(50));
const drawNames = (root) => {
  letters.style.cssText = "position:absolute;visibility:hidden;padding:0";
  document.body.append(letters);
  const wide = letters.getBoundingClientRect().width / 50;
  letters.remove();
  const fitting = [];
  for (const name of root.querySelectorAll("[data-full]")) {
    if (!name.clientWidth) continue;
    const style = getComputedStyle(name);
    const free = name.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - (name.closest("summary") ? 12 : 0);
    fitting.push([name, elide(name.dataset.full, Math.max(4, Math.floor(free / wide - 0.05)))]);
  }
  for (const [name, text] of fitting) name.textContent = text; // after all sizes were read: one layout, not hundreds
};

// Groups: names alike up to their first number, wherever they stand; an optimizer's groups of parameters
// tear apart what is one block. Others stand with those beside them.
const prefixOf = (name) => {
  const parts = name.split(".");
  const at = parts.slice(0, -1).findIndex((each) => each && !/\D/.test(each));
  return at < 0 ? "" : parts.slice(0, at + 1).join(".");
};
const groupsOf = (names) => {
  const groups = [], known = new Map();
  names.forEach((name, layer) => {
    const prefix = prefixOf(name);
    let group = prefix ? known.get(prefix) : groups[groups.length - 1];
    if (!group || group.prefix !== prefix) {
      groups.push((group = { prefix, layers: [] }));
      known.set(prefix, group);
    }
    group.layers.push(layer);
  });
  for (const group of groups) if (group.layers.length < 2) group.prefix = "";
  return groups;
};
