// One training step as stacked steps: what the card holds from operation to operation. The picture is a slider:
// pointer and arrow keys move a cursor through the moments, Enter opens the line that took memory there.
import type { Loop, Place, WordKey } from '../memory';
import { h, svg } from './dom';

type Word = (key: WordKey, ...values: readonly (string | number)[]) => string;

const HEIGHT = 240;
const TOP = 26;
const LEFT = 64;
const RIGHT = 12;
const BOTTOM = 6;
// A card that is much larger would press the picture flat; the bar above shows it.
const NEAR = 1.35;

export class Timeline {
  readonly element: HTMLElement;
  private readonly picture = svg('svg', { class: 'timeline', height: HEIGHT });
  private readonly cursor = svg('line', { class: 'cursor', y1: TOP, y2: HEIGHT - BOTTOM });
  private readonly readout = h('p', { class: 'readout', 'aria-hidden': 'true' });
  private readonly here: HTMLElement[] = [];
  private readonly totals: readonly number[];
  private readonly peak: number;
  private at: number;
  private width = 0;

  constructor(
    private readonly loop: Loop,
    private readonly word: Word,
    private readonly size: (bytes: number) => string,
    private readonly open: (place: Place) => void,
  ) {
    this.totals = loop.timeline.map((moment) => moment.bytes.reduce((sum, bytes) => sum + bytes, 0));
    this.peak = this.totals.indexOf(Math.max(...this.totals));
    this.at = this.peak;
    const attributes = {
      role: 'slider',
      tabindex: '0',
      'data-key': 'timeline',
      'aria-label': word('cursor'),
      'aria-describedby': 'step-help',
      'aria-valuemin': '1',
      'aria-valuemax': String(this.totals.length),
    };
    for (const [name, value] of Object.entries(attributes)) {
      this.picture.setAttribute(name, value);
    }
    this.picture.addEventListener('keydown', (event) => this.pressed(event));
    this.picture.addEventListener('pointermove', (event) => this.move(this.momentAt(event.offsetX)));
    this.picture.addEventListener('click', () => this.follow());
    this.element = h('div', {}, this.picture, this.readout, this.legend());
    this.move(this.peak);
  }

  /** Fit the picture to the space there is. */
  draw(): void {
    this.width = Math.max(this.element.clientWidth, 320);
    this.picture.setAttribute('width', String(this.width));
    this.picture.setAttribute('viewBox', `0 0 ${this.width} ${HEIGHT}`);
    const highest = this.totals[this.peak] ?? 1;
    const cards = this.loop.gpus.filter((gpu) => gpu.bytes <= highest * NEAR);
    const top = Math.max(highest, ...cards.map((gpu) => gpu.bytes)) * 1.04;
    const y = (bytes: number) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * bytes) / top;
    this.picture.replaceChildren(
      patterns(),
      ...this.grid(top, y),
      ...this.areas(y),
      ...this.phases(),
      ...cards.flatMap((gpu) => this.capacity(gpu.title, y(gpu.bytes))),
      ...this.peakMark(y(highest)),
      this.cursor,
    );
    this.move(this.at);
  }

  // ----------------------------------------------------------------------- parts of the picture

  private x(index: number): number {
    return LEFT + ((this.width - LEFT - RIGHT) * index) / this.totals.length;
  }

  private grid(top: number, y: (bytes: number) => number): SVGElement[] {
    const { unit, name } = unitOf(top);
    const step = niceStep(top / 4 / unit) * unit;
    const lines: SVGElement[] = [];
    for (let bytes = 0; bytes <= top; bytes += step) {
      const at = y(bytes);
      lines.push(svg('line', { class: 'grid', x1: LEFT, x2: this.width - RIGHT, y1: at, y2: at }));
      lines.push(svg('text', { class: 'tick', x: LEFT - 8, y: at + 4 }, `${Math.round((10 * bytes) / unit) / 10} ${name}`));
    }
    return lines;
  }

  private areas(y: (bytes: number) => number): SVGElement[] {
    const below = new Array<number>(this.totals.length).fill(0);
    return this.loop.purposes.flatMap((purpose, number) => {
      const lower = [...below];
      this.loop.timeline.forEach((moment, index) => (below[index] = (below[index] ?? 0) + (moment.bytes[number] ?? 0)));
      if (below.every((bytes, index) => bytes === lower[index])) {
        return [];
      }
      const up = below.map((bytes, index) => `H${r(this.x(index))}V${r(y(bytes))}H${r(this.x(index + 1))}`).join('');
      const down = lower
        .map((bytes, index) => `H${r(this.x(index + 1))}V${r(y(bytes))}H${r(this.x(index))}`)
        .reverse()
        .join('');
      const d = `M${r(this.x(0))},${r(y(lower[0] ?? 0))}${up}${down}Z`;
      return [
        svg('path', { class: `area p${number}`, d }, svg('title', {}, purpose.name)),
        svg('path', { class: 'pattern', d, fill: `url(#pattern${number})` }),
      ];
    });
  }

  private phases(): SVGElement[] {
    const marks: SVGElement[] = [];
    let from = 0;
    this.loop.timeline.forEach((moment, index) => {
      const next = this.loop.timeline[index + 1];
      if (next?.phase === moment.phase) {
        return;
      }
      const [start, end] = [this.x(from), this.x(index + 1)];
      if (from > 0) {
        marks.push(svg('line', { class: 'border', x1: start, x2: start, y1: 8, y2: HEIGHT - BOTTOM }));
      }
      if (end - start > 8 * moment.phase.length) {
        marks.push(svg('text', { class: 'phase', x: (start + end) / 2, y: 16 }, moment.phase));
      }
      from = index + 1;
    });
    return marks;
  }

  private capacity(title: string, at: number): SVGElement[] {
    return [
      svg('line', { class: 'capacity', x1: LEFT, x2: this.width - RIGHT, y1: at, y2: at }),
      svg('text', { class: 'capacity-name', x: this.width - RIGHT - 4, y: at - 4 }, title),
    ];
  }

  private peakMark(at: number): SVGElement[] {
    const x = (this.x(this.peak) + this.x(this.peak + 1)) / 2;
    return [svg('path', { class: 'peak-mark', d: `M${x - 5},${at - 9}H${x + 5}L${x},${at - 2}Z` })];
  }

  // ----------------------------------------------------------------------- the cursor

  private momentAt(x: number): number {
    const share = (x - LEFT) / (this.width - LEFT - RIGHT);
    return Math.min(this.totals.length - 1, Math.max(0, Math.floor(share * this.totals.length)));
  }

  private pressed(event: KeyboardEvent): void {
    const page = Math.max(1, Math.round(this.totals.length / 10));
    const by: Record<string, number> = {
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page,
      Home: -this.totals.length, End: this.totals.length,
    };
    const step = by[event.key];
    if (step !== undefined) {
      this.move(Math.min(this.totals.length - 1, Math.max(0, this.at + step)));
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.follow();
    } else {
      return;
    }
    event.preventDefault();
  }

  private follow(): void {
    const place = this.loop.timeline[this.at]?.place;
    if (place) {
      this.open(place);
    }
  }

  private move(to: number): void {
    const moment = this.loop.timeline[to];
    if (!moment) {
      return;
    }
    this.at = to;
    const x = (this.x(to) + this.x(to + 1)) / 2;
    this.cursor.setAttribute('x1', String(x));
    this.cursor.setAttribute('x2', String(x));
    const place = moment.place ? `, ${moment.place.label}` : '';
    const mark = to === this.peak ? ` (${this.word('peakLabel')})` : '';
    const said = `${moment.phase}${place}: ${moment.size}${mark}`;
    this.readout.textContent = said;
    this.picture.setAttribute('aria-valuenow', String(to + 1));
    const parts = this.loop.purposes
      .map((purpose, index) => ({ name: purpose.name, bytes: moment.bytes[index] ?? 0 }))
      .filter((part) => part.bytes > 0)
      .map((part) => `${part.name} ${this.size(part.bytes)}`);
    this.picture.setAttribute('aria-valuetext', `${said}. ${parts.join(', ')}`);
    this.here.forEach((cell, index) => (cell.textContent = this.size(moment.bytes[index] ?? 0)));
  }

  private legend(): HTMLElement {
    const rows = this.loop.purposes.map((purpose, index) => {
      const here = h('td', { class: 'number' });
      this.here.push(here);
      const box = { x: 0.5, y: 0.5, width: 11, height: 11 };
      const swatch = svg(
        'svg',
        { class: 'swatch', width: 12, height: 12, 'aria-hidden': 'true' },
        svg('rect', { class: `area p${index}`, ...box }),
        svg('rect', { class: 'pattern', fill: `url(#pattern${index})`, ...box }),
      );
      return h('tr', {}, h('td', {}, swatch, purpose.name), h('td', { class: 'number' }, purpose.size), here);
    });
    const header = [this.word('purpose'), this.word('atPeak'), this.word('here')];
    return h(
      'table',
      { class: 'legend' },
      h('thead', {}, h('tr', {}, ...header.map((title, column) => h('th', { scope: 'col', class: column ? 'number' : '' }, title)))),
      h('tbody', {}, ...rows),
    );
  }
}

/** Hatchings for those to whom colours say nothing; the style sheet shows them in high contrast. */
function patterns(): SVGElement {
  const shapes = ['', 'M0,8L8,0', 'M0,0L8,8', 'M0,4H8', 'M4,0V8', 'M0,8L8,0M0,0L8,8', 'M0,4H8M4,0V8'];
  const made = shapes.map((d, index) =>
    svg(
      'pattern',
      { id: `pattern${index}`, width: 8, height: 8, patternUnits: 'userSpaceOnUse' },
      svg('path', { class: 'hatch', d }),
    ),
  );
  return svg('defs', {}, ...made);
}

function unitOf(bytes: number): { unit: number; name: string } {
  const exponent = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return { unit: 2 ** (10 * exponent), name: ['B', 'KiB', 'MiB', 'GiB', 'TiB'][exponent] ?? 'B' };
}

/** 1, 2 or 5 times a power of ten, at least `value`. */
function niceStep(value: number): number {
  const ten = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((digit) => digit * ten >= value * 0.999) ?? 10) * ten;
}

function r(value: number): string {
  return value.toFixed(1);
}
