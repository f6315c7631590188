// The memory panel. Everything shown is made with DOM calls from plain values: no text of a workspace is ever
// parsed as HTML.
import type { FromPanel, Loop, Memory, Place, Remedy, ToPanel, WordKey, Words } from '../memory';
import { Timeline } from './timeline';
import { button, Child, h } from './dom';
import { bar } from './bar';

declare function acquireVsCodeApi(): {
  postMessage(message: FromPanel): void;
  getState(): { uri?: string; loop?: number } | undefined;
  setState(state: { uri: string; loop: number }): void;
};

const host = acquireVsCodeApi();
const main = document.querySelector('main') as HTMLElement;
let memory: Memory | undefined;
let words: Words;
let chosen = host.getState()?.loop ?? 0;
let timeline: Timeline | undefined;

window.addEventListener('message', (event: MessageEvent<ToPanel>) => {
  const message = event.data;
  if (message.kind === 'none') {
    memory = undefined;
    main.replaceChildren(h('p', { class: 'quiet' }, message.text));
    return;
  }
  if (memory?.uri !== message.memory.uri) {
    chosen = memory ? 0 : chosen;
  }
  ({ memory, words } = message);
  show();
});
window.addEventListener('resize', () => timeline?.draw());
host.postMessage({ kind: 'ready' });

function show(): void {
  if (!memory) {
    return;
  }
  const focused = document.activeElement?.getAttribute('data-key');
  const scrolled = document.scrollingElement?.scrollTop ?? 0;
  chosen = Math.min(chosen, Math.max(memory.loops.length - 1, 0));
  host.setState({ uri: memory.uri, loop: chosen });
  timeline = undefined;
  const loop = memory.loops[chosen];
  main.replaceChildren(
    h('h1', {}, word('memoryOf', memory.name)),
    ...(memory.isKept ? [h('p', { class: 'notice', role: 'status' }, word('kept'))] : []),
    ...(memory.loops.length > 1 ? [loopTabs(memory)] : []),
    ...(loop ? [loopBody(loop)] : []),
    ...unanswered(memory),
  );
  (timeline as Timeline | undefined)?.draw(); // made by loopBody, which the compiler does not see
  if (document.scrollingElement) {
    document.scrollingElement.scrollTop = scrolled; // the same document again: the reader stays where they are
  }
  if (focused) {
    document.querySelector<HTMLElement>(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }
}

function word(key: WordKey, ...values: readonly (string | number)[]): string {
  return words[key].replace(/\{(\d)\}/g, (_, index: string) => String(values[Number(index)] ?? ''));
}

// ------------------------------------------------------------------------- one loop

function loopTabs(of: Memory): HTMLElement {
  const tabs = of.loops.map((loop, index) =>
    button(
      {
        class: 'tab',
        role: 'tab',
        'aria-selected': String(index === chosen),
        tabindex: index === chosen ? '0' : '-1',
        'data-key': `tab${index}`,
      },
      [loop.launch?.short ?? `${loop.title}, ${loop.place?.label ?? ''}`, loop.peak ?? '?'].join(' · '),
      () => choose(index),
    ),
  );
  const list = h('div', { class: 'tabs', role: 'tablist', 'aria-label': word('loops') }, ...tabs);
  list.addEventListener('keydown', (event) => {
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (by) {
      event.preventDefault();
      const next = (chosen + by + of.loops.length) % of.loops.length;
      choose(next);
      document.querySelector<HTMLElement>(`[data-key="tab${next}"]`)?.focus();
    }
  });
  return list;
}

function choose(index: number): void {
  chosen = index;
  show();
}

function loopBody(loop: Loop): HTMLElement {
  return h(
    'div',
    {},
    headline(loop),
    section('fits', word('fitsTitle'), ...gpus(loop)),
    ...(loop.timeline.length ? [section('step', word('stepTitle'), ...step(loop))] : []),
    ...(loop.remedies.length ? [section('remedies', word('remediesTitle'), remedies(loop))] : []),
    section('alive', word('aliveTitle'), alive(loop)),
    ...details(loop),
  );
}

function headline(loop: Loop): HTMLElement {
  const about = [loop.range, loop.where, ...loop.facts].filter(Boolean).join(' · ');
  const at = loop.place ? [` ${loop.title}, `, link(loop.place)] : [` ${loop.title}`];
  return h(
    'header',
    { class: 'headline' },
    h('p', { class: 'peak' }, h('strong', {}, loop.peak ?? '?'), h('span', {}, word('perGpu'))),
    h('p', { class: 'about' }, about),
    h('p', { class: 'quiet' }, ...at),
    ...(loop.launch ? [started(loop.launch)] : []),
  );
}

function started(launch: NonNullable<Loop['launch']>): HTMLElement {
  const from = launch.place ? [' ', link(launch.place)] : [];
  return h('p', { class: 'quiet' }, `${word('startedWith')} `, h('code', {}, launch.words), ...from);
}

function gpus(loop: Loop): Child[] {
  const total = loop.purposes.reduce((sum, purpose) => sum + purpose.bytes, 0);
  const reserved = Math.max(loop.peaks[1]?.bytes ?? total, total);
  const choice = button({ class: 'secondary', 'data-key': 'gpus' }, word('chooseGpus'), () =>
    host.postMessage({ kind: 'chooseGpus' }),
  );
  if (loop.gpus.length === 0) {
    return [h('p', { class: 'quiet' }, word('noGpus'), ' ', choice), bar(loop.purposes, total, reserved, reserved, '')];
  }
  const rows = loop.gpus.map((gpu) => {
    const taken = gpu.apart?.reserved ?? reserved;
    const needed = gpu.apart?.bytes ?? total;
    const rest = gpu.bytes - taken;
    const share = `${((100 * needed) / gpu.bytes).toFixed(needed > gpu.bytes ? 0 : 1)} %`;
    const plain = word('of', gpu.apart?.size ?? loop.peak ?? '?', gpu.size, share);
    const said = gpu.apart ? word('apart', plain) : plain;
    const left = rest >= 0 ? word('free', size(rest)) : word('over', size(-rest));
    return h(
      'li',
      {},
      h(
        'p',
        { class: 'card' },
        h('strong', {}, gpu.title),
        h('span', { class: `verdict ${gpu.verdict}` }, gpu.words),
        h('span', { class: 'quiet' }, `${said} · ${left}`),
      ),
      bar(gpu.apart ? [] : loop.purposes, gpu.apart ? 0 : total, taken, gpu.bytes, `${gpu.title}: ${gpu.words}. ${said}. ${left}`),
    );
  });
  return [h('ul', { class: 'gpus' }, ...rows), h('p', {}, choice)];
}

function step(loop: Loop): Child[] {
  timeline = new Timeline(loop, word, size, (place) => open(place));
  return [h('p', { class: 'quiet', id: 'step-help' }, word('stepHelp')), timeline.element];
}

function remedies(loop: Loop): HTMLElement {
  const peak = loop.peaks[0]?.bytes ?? 0;
  const items = loop.remedies.map((remedy) => {
    const meter = h('div', { class: 'saving', 'aria-hidden': 'true' }, h('div', {}));
    (meter.firstChild as HTMLElement).style.width = `${Math.max(1, (100 * remedy.peakBytes) / (peak || 1))}%`;
    return h(
      'li',
      {},
      h('p', { class: 'change' }, h('strong', {}, remedy.change)),
      meter,
      h('p', {}, `${word('saves', remedy.saves)}, ${word('leaves', remedy.peak)}`),
      h('p', { class: 'quiet' }, word('cost', remedy.cost)),
      h('p', { class: 'buttons' }, ...remedyButtons(loop, remedy)),
    );
  });
  return h('ul', { class: 'remedies' }, ...items);
}

function remedyButtons(loop: Loop, remedy: Remedy): Child[] {
  const key = `remedy${remedy.number}`;
  if (remedy.edits.length === 0) {
    return [
      button({ class: 'secondary', 'data-key': key, 'aria-label': `${word('copy')}: ${remedy.change}` }, word('copy'), () =>
        host.postMessage({ kind: 'copy', text: remedy.change }),
      ),
    ];
  }
  const places = [...new Set(remedy.edits.map((edit) => edit.place?.label ?? ''))].join(', ');
  const numbers = remedy.edits.filter((edit) => /^\d+$/.test(edit.text));
  const isNumber = numbers.length === remedy.edits.length;
  const label = isNumber ? word('apply', places, numbers[0]?.text ?? '') : word('edit', places);
  const version = memory?.version ?? 0;
  return [
    button({ 'data-key': key, 'aria-describedby': `${key}-note` }, label, () =>
      host.postMessage({ kind: 'apply', version, loop: loop.number, remedy: remedy.number }),
    ),
    ...(numbers.length ? [h('span', { class: 'quiet', id: `${key}-note` }, word('editOnly'))] : []),
  ];
}

function alive(loop: Loop): HTMLElement {
  const largest = Math.max(...loop.alive.map((group) => group.bytes), 1);
  const rows = loop.alive.map((group) => {
    const share = h('div', { class: 'share', 'aria-hidden': 'true' });
    share.style.width = `${Math.max(1, (100 * group.bytes) / largest)}%`;
    const count = group.count > 1 ? ` × ${group.count}` : '';
    return [h('td', { class: 'number' }, group.size), h('td', {}, `${group.what}${count}`, share), cell(group.place)];
  });
  return table([word('size'), word('what'), word('madeAt')], rows);
}

function details(loop: Loop): HTMLElement[] {
  const peaks = loop.peaks.map((peak) => [
    h('td', {}, peak.name),
    h('td', { class: 'number' }, peak.size),
    h('td', { class: 'number' }, peak.range),
    h('td', {}, h('code', {}, peak.source)),
  ]);
  const layers = loop.modules.map((layer) => [
    h('td', {}, layer.name + (layer.count > 1 ? ` × ${layer.count}` : '')),
    h('td', { class: 'number' }, layer.parameters),
    h('td', { class: 'number' }, layer.weights),
    h('td', { class: 'number' }, layer.alive ?? ''),
    cell(layer.place),
  ]);
  const plan = loop.plan.map((fact) => [
    h('td', {}, fact.name),
    h('td', {}, h('code', {}, fact.value)),
    h('td', {}, ...(fact.place ? [link(fact.place), ' '] : []), fact.note),
  ]);
  return [
    fold('peaks', word('peaksTitle'), table([word('peakRow'), word('size'), word('interval'), word('measuredBy')], peaks)),
    ...(layers.length
      ? [
          fold(
            'layers',
            word('layersTitle'),
            table([word('layer'), word('parameters'), word('weights'), word('activations'), word('madeAt')], layers),
          ),
        ]
      : []),
    ...(plan.length ? [fold('plan', word('planTitle'), table([], plan))] : []),
    ...(loop.assumptions.length
      ? [fold('assumptions', word('assumptionsTitle'), h('ul', {}, ...loop.assumptions.map((text) => h('li', {}, text))))]
      : []),
  ];
}

function unanswered(of: Memory): HTMLElement[] {
  if (of.unanswered.length === 0) {
    return of.loops.length ? [] : [h('p', { class: 'quiet' }, word('nothing'))];
  }
  const rows = of.unanswered.map((entry) =>
    h('li', {}, ...(entry.place ? [link(entry.place), ': '] : []), entry.message),
  );
  return [section('unanswered', word('unansweredTitle'), h('ul', {}, ...rows))];
}

// ------------------------------------------------------------------------- pieces

function section(key: string, title: string, ...children: Child[]): HTMLElement {
  return h('section', { 'aria-labelledby': key }, h('h2', { id: key }, title), ...children);
}

const unfolded = new Set<string>();

function fold(key: string, title: string, body: HTMLElement): HTMLElement {
  const made = h('details', {}, h('summary', { 'data-key': key }, title), body);
  (made as HTMLDetailsElement).open = unfolded.has(key);
  made.addEventListener('toggle', () => {
    if ((made as HTMLDetailsElement).open) {
      unfolded.add(key);
    } else {
      unfolded.delete(key);
    }
  });
  return made;
}

function table(header: readonly string[], rows: readonly HTMLElement[][]): HTMLElement {
  const head = header.length
    ? [h('thead', {}, h('tr', {}, ...header.map((title, column) => h('th', heading(rows, column), title))))]
    : [];
  return h('table', {}, ...head, h('tbody', {}, ...rows.map((row) => h('tr', {}, ...row))));
}

/** Above numbers a heading stands to the right, too. */
function heading(rows: readonly HTMLElement[][], column: number): Record<string, string> {
  return { scope: 'col', class: rows[0]?.[column]?.className === 'number' ? 'number' : '' };
}

function cell(place: Place | null): HTMLElement {
  return place ? h('td', {}, link(place)) : h('td', {});
}

function link(place: Place): HTMLElement {
  if (place.uri === null) {
    return h('span', {}, place.label);
  }
  return button({ class: 'link', title: word('openPlace', place.label) }, place.label, () => open(place));
}

function open(place: Place): void {
  if (place.uri !== null) {
    host.postMessage({ kind: 'open', uri: place.uri, line: place.line });
  }
}

/** Bytes as the server writes them: three significant digits and a binary unit. */
function size(bytes: number): string {
  for (const [unit, exponent] of [['TiB', 40], ['GiB', 30], ['MiB', 20], ['KiB', 10]] as const) {
    const value = bytes / 2 ** exponent;
    if (value >= 1) {
      return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
    }
  }
  return `${bytes} B`;
}

