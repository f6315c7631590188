// Elements from values. Text becomes text nodes, never markup.

export type Child = Node | string;

export function h(tag: string, attributes: Readonly<Record<string, string>>, ...children: readonly Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag: string, attributes: Readonly<Record<string, string | number>>, ...children: readonly Child[]): SVGElement {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

export function button(attributes: Readonly<Record<string, string>>, label: string, act: () => void): HTMLElement {
  const made = h('button', { type: 'button', ...attributes }, label);
  made.addEventListener('click', act);
  return made;
}
