// What a card holds at the peak, as one stacked bar as long as the card is large.
import type { Purpose } from '../memory';
import { h } from './dom';

/**
 * `reserved`: what the allocator has taken, cut up or not; `capacity`: the whole bar, unless the peak is longer.
 * `label` says it to those who cannot see it; empty where the text beside it does.
 */
export function bar(
  purposes: readonly Purpose[],
  allocated: number,
  reserved: number,
  capacity: number,
  label: string,
): HTMLElement {
  const whole = Math.max(capacity, reserved, 1);
  const share = (bytes: number) => `${(100 * bytes) / whole}%`;
  const made = h('div', label ? { class: 'bar', role: 'img', 'aria-label': label } : { class: 'bar', 'aria-hidden': 'true' });
  purposes.forEach((purpose, index) => {
    if (purpose.bytes > 0) {
      const part = h('div', { class: `part p${index}`, title: `${purpose.name}: ${purpose.size}` });
      part.style.width = share(purpose.bytes);
      made.append(part);
    }
  });
  const cached = h('div', { class: 'part reserved' });
  cached.style.width = share(Math.max(reserved - allocated, 0));
  made.append(cached);
  if (capacity < whole) {
    const end = h('div', { class: 'end' });
    end.style.left = share(capacity);
    made.append(end);
  }
  return made;
}
