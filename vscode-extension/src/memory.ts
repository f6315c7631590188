// What the server says of the memory of one document (its command `torchwise.memoryPanel`). Words and numbers
// come ready to be read; sizes come as bytes, too, to be drawn.

/** A place in the source; without `uri` it can be named but not opened. Lines count from 0. */
export interface Place {
  readonly label: string;
  readonly uri: string | null;
  readonly line: number;
}

export interface Gpu {
  readonly title: string;
  readonly verdict: string;
  readonly words: string;
  readonly bytes: number;
  readonly size: string;
  /** Its kernels are others than those that all else tells of: what it needs with them. */
  readonly apart: { readonly bytes: number; readonly size: string; readonly reserved: number } | null;
}

export interface Purpose {
  readonly name: string;
  readonly bytes: number;
  readonly size: string;
}

/** `bytes`: by purpose, in their order. */
export interface Moment {
  readonly phase: string;
  readonly place: Place | null;
  readonly bytes: readonly number[];
  readonly size: string;
}

export interface Group {
  readonly bytes: number;
  readonly size: string;
  readonly what: string;
  readonly count: number;
  readonly place: Place | null;
}

export interface Layer {
  readonly name: string;
  readonly count: number;
  readonly place: Place | null;
  readonly parameters: string;
  readonly weights: string;
  readonly alive: string | null;
}

export interface Remedy {
  readonly number: number;
  readonly change: string;
  readonly cost: string;
  readonly saves: string;
  readonly peak: string;
  readonly peakBytes: number;
  readonly edits: readonly { readonly place: Place | null; readonly text: string }[];
}

export interface Fact {
  readonly name: string;
  readonly value: string;
  readonly note: string;
  readonly place: Place | null;
}

export interface Peak {
  readonly name: string;
  readonly source: string;
  readonly bytes: number | null;
  readonly size: string;
  readonly range: string;
}

export interface Loop {
  readonly number: number;
  readonly title: string;
  readonly place: Place | null;
  readonly peak: string | null;
  readonly range: string | null;
  readonly where: string;
  readonly facts: readonly string[];
  /** The start of the script that the figures are for, where the project's own texts name several. */
  readonly launch: { readonly words: string; readonly short: string; readonly place: Place | null } | null;
  readonly peaks: readonly Peak[];
  readonly gpus: readonly Gpu[];
  readonly purposes: readonly Purpose[];
  readonly timeline: readonly Moment[];
  readonly alive: readonly Group[];
  readonly modules: readonly Layer[];
  readonly remedies: readonly Remedy[];
  readonly plan: readonly Fact[];
  readonly assumptions: readonly string[];
}

export interface Memory {
  readonly uri: string;
  readonly name: string;
  readonly version: number;
  /** The code is broken; the figures are those of the last complete text. */
  readonly isKept: boolean;
  readonly loops: readonly Loop[];
  readonly unanswered: readonly { readonly place: Place | null; readonly message: string }[];
}

/** Words of the panel itself, in the reader's language. `{0}` stands for a value. */
export type Words = Readonly<Record<WordKey, string>>;

export type WordKey =
  | 'memoryOf' | 'startedWith' | 'kept' | 'perGpu' | 'loops' | 'fitsTitle' | 'noGpus'
  | 'chooseGpus' | 'of' | 'apart' | 'free' | 'over' | 'stepTitle' | 'stepHelp'
  | 'cursor' | 'peakLabel' | 'purpose' | 'atPeak' | 'here' | 'remediesTitle'
  | 'saves' | 'leaves' | 'cost' | 'apply' | 'edit' | 'editOnly' | 'copy' | 'aliveTitle'
  | 'size' | 'what' | 'madeAt' | 'layersTitle' | 'layer' | 'parameters'
  | 'weights' | 'activations' | 'peaksTitle' | 'peakRow' | 'interval' | 'measuredBy'
  | 'planTitle' | 'assumptionsTitle' | 'unansweredTitle' | 'nothing' | 'openPlace';

/** From the extension to the panel. */
export type ToPanel =
  | { readonly kind: 'show'; readonly memory: Memory; readonly words: Words }
  | { readonly kind: 'none'; readonly text: string };

/** From the panel to the extension. */
export type FromPanel =
  | { readonly kind: 'ready' }
  | { readonly kind: 'open'; readonly uri: string; readonly line: number }
  | { readonly kind: 'apply'; readonly version: number; readonly loop: number; readonly remedy: number }
  | { readonly kind: 'copy'; readonly text: string }
  | { readonly kind: 'chooseGpus' };
